"""One call of ``generate``, steadied: the logits processors and stopping criteria that `attach` puts into it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.generation import logits_process as hf

from surefoot.control import Controller, Ledger, Overrides, SamplerStep, Trace
from surefoot.control import overrides as row
from surefoot.engines.probe import Probe
from surefoot.engines.sampler import limit_top_p
from surefoot.errors import NonFiniteLogitsError

# Everything `generate` may put behind the temperature.
_WARPERS = tuple(
    getattr(hf, name)
    for name in (
        "TemperatureLogitsWarper", "TopHLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper",
        "TypicalLogitsWarper", "EpsilonLogitsWarper", "EtaLogitsWarper",
    )
    if hasattr(hf, name)
)  # fmt: skip


class Run:
    """One call of ``generate``."""

    def __init__(self, probe: Probe, generation_config: Any, acting: bool) -> None:
        self.profile = probe.profile
        self._probe = probe
        self._acting = acting
        sampled = bool(generation_config.do_sample)
        self.temperature = float(1.0 if generation_config.temperature is None else generation_config.temperature)
        self.temperature = self.temperature if sampled else 0.0
        self.top_p = float(1.0 if generation_config.top_p is None else generation_config.top_p)
        self._controller: Controller | None = None
        self._slots = torch.empty(0, dtype=torch.int64)
        self._start = 0
        self._steps: list[Tensor] = []
        self.ended: list[Tensor] = []
        self.overrides: Overrides | None = None

    def place(self, processors: LogitsProcessorList) -> LogitsProcessorList:
        """Put the decision before the temperature, and the limits it owns where ``generate`` has them."""
        first = next((i for i, p in enumerate(processors) if isinstance(p, _WARPERS)), len(processors))
        placed = [*processors[:first], _Decide(self)]
        limited = False
        for p in processors[first:]:
            if isinstance(p, hf.TopPLogitsWarper):
                p, limited = _TopP(self), True
            placed.append(p)
        if self.temperature and self.profile.alters_top_p and not limited:
            placed.append(_TopP(self))
        if self.temperature and self.profile.consistency is not None:
            placed.append(_Redraw(self))
        placed.append(_Acknowledge(self))
        return LogitsProcessorList(placed)

    def decide(self, input_ids: Tensor, scores: Tensor) -> Overrides:
        """Measure the step that made ``scores`` and decide it."""
        if self._controller is None:
            rows = scores.shape[0]
            self._controller = Controller(self.profile, rows, scores.device)
            self._slots = torch.arange(rows, device=scores.device)
            self._controller.reset(self._slots, self.temperature, self.top_p, self._acting)
            self._start = input_ids.shape[1]
        self.overrides = self._controller.decide(self._probe.signals(scores), self._slots)
        packed = self.overrides.packed
        # On a GPU looking costs a synchronisation; there the check waits for the end of the call.
        if packed.device.type == "cpu" and np.isnan(packed.numpy()[row.ENTROPY]).any():
            raise NonFiniteLogitsError(len(self._steps) + 1)
        self._steps.append(packed)
        return self.overrides

    def acknowledge(self) -> None:
        """Tell the controller which override the scores now carry."""
        assert self._controller is not None and self.overrides is not None
        self._controller.acknowledge(SamplerStep(self.overrides.sequence), self._slots)

    def end(self, ended: Tensor) -> None:
        """Note which rows this step ended; they only pad the batch from here on."""
        self.ended.append(ended)
        if self._controller is not None:
            self._controller.mute(ended)

    def ledger(self) -> Ledger:
        """Overrides decided and applied in this call."""
        return self._controller.ledger() if self._controller else Ledger(0, 0)

    def finish(self, result: Any, tokenizer: Any) -> list[Trace]:
        """Traces of all rows, each up to the token that ended it."""
        sequences: Tensor = result if isinstance(result, Tensor) else result.sequences
        if not self._steps:
            return [Trace(self.profile) for _ in range(sequences.shape[0])]
        steps = torch.stack(self._steps).cpu()  # (steps, ROWS, B)
        ended = torch.stack(self.ended).cpu().T.tolist()  # (B, steps)
        traces = []
        for b, tokens in enumerate(sequences[:, self._start :].tolist()):
            trace = Trace(self.profile)
            for step, token, last in zip(steps[:, :, b].tolist(), tokens, ended[b], strict=False):
                entry = trace.append(token, tokenizer.decode([token]) if tokenizer else "", step)
                if entry.entropy is None:
                    raise NonFiniteLogitsError(len(trace.tokens))
                if last:
                    break
            traces.append(trace)
        return traces


class _Decide(LogitsProcessor):
    """Rescale the scores so that the temperature that follows becomes the decided one."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        overrides = self._run.decide(input_ids, scores)
        if not self._run.temperature:
            return scores
        if scores.device.type == "cpu" and not overrides.sequence.numpy().any():
            return scores
        # Exactly 1 where nothing is overridden: those rows keep every bit.
        request = torch.full_like(overrides.temperature, self._run.temperature)
        return scores * (request / overrides.temperature).unsqueeze(-1)


class _TopP(LogitsProcessor):
    """Top-p with a limit of its own for each row."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        assert self._run.overrides is not None
        return limit_top_p(scores, self._run.overrides.top_p)


class _Redraw(LogitsProcessor):
    """Where blocks disagree, make a first draw and drop it (S6.2); ``generate`` makes the second."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        assert self._run.overrides is not None
        again = self._run.overrides.resample
        if bool(again.any()):
            torch.multinomial(scores[again].softmax(-1), 1)
        return scores


class _Acknowledge(LogitsProcessor):
    """Last of all: what is decided has now been applied."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._run.acknowledge()
        return scores


class Criteria(StoppingCriteriaList):
    """All of ``generate``'s criteria; notes which rows each step ended, for whatever reason."""

    def __init__(self, criteria: list[Any], run: Run) -> None:
        super().__init__(criteria)
        self._run = run

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:  # noqa: D102
        ended: Tensor = super().__call__(input_ids, scores, **kwargs)
        self._run.end(ended)
        return ended


class Fuse(StoppingCriteria):
    """End a row whose fuse has blown."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:  # noqa: D102
        assert self._run.overrides is not None
        return self._run.overrides.stop
