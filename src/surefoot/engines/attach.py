"""`attach`: steady a Transformers model inside its own ``generate``."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel, StoppingCriteria, StoppingCriteriaList
from transformers.generation import logits_process as hf

from surefoot.control import Controller, Ledger, Overrides, Profile, SamplerStep, Trace, load_profile
from surefoot.control import overrides as row
from surefoot.engines.identity import check_profile
from surefoot.engines.probe import Probe
from surefoot.engines.sampler import limit_top_p
from surefoot.errors import InputError, NonFiniteLogitsError

# Everything `generate` may put behind the temperature.
_WARPERS = tuple(
    getattr(hf, name)
    for name in (
        "TemperatureLogitsWarper", "TopHLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper",
        "TypicalLogitsWarper", "EpsilonLogitsWarper", "EtaLogitsWarper",
    )
    if hasattr(hf, name)
)  # fmt: skip


class Footing:
    """What `attach` returns: the traces of the last ``generate``, and the way to detach.

    Attributes
    ----------
    profile : Profile
        What decides.
    traces : list of Trace
        One a row of the last ``generate`` call, in the order of its output.
    ledger : Ledger or None
        Overrides decided and applied in that call.
    """

    def __init__(self, model: Any, profile: Profile, *, acting: bool = True, tokenizer: Any = None) -> None:
        self.profile = profile
        self.traces: list[Trace] = []
        self.ledger: Ledger | None = None
        self._acting = acting
        self._tokenizer = tokenizer
        self._model = model
        self._probe = Probe(model, profile)
        self._run: _Run | None = None
        self._turn = threading.RLock()
        for name in ("generate", "_get_logits_processor", "_get_stopping_criteria"):
            # Instance attributes hide the class's methods; deleting them detaches.
            setattr(model, name, getattr(self, "_" + name.lstrip("_")))

    def __enter__(self) -> Footing:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def detach(self) -> None:
        """Give the model back as it was. Doing it twice is no error."""
        if self._model.__dict__.get("generate") == self._generate:
            for name in ("generate", "_get_logits_processor", "_get_stopping_criteria"):
                self._model.__dict__.pop(name, None)

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        for name in ("assistant_model", "custom_generate"):
            if kwargs.get(name) is not None:
                raise InputError(f"generate({name}=...) cannot be steadied.", "Call footing.detach() first.")
        # Threads that share the model take turns; the probe watches one call at a time.
        with self._turn:
            return self._steadied(*args, **kwargs)

    def _steadied(self, *args: Any, **kwargs: Any) -> Any:
        self._run = None
        try:
            with self._probe.watching():
                result = type(self._model).generate(self._model, *args, **kwargs)
            if self._run is not None:
                self.traces = self._run.finish(result, self._tokenizer)
                self.ledger = self._run.ledger()
            return result
        finally:
            self._run = None

    def _get_logits_processor(self, generation_config: Any, *args: Any, **kwargs: Any) -> LogitsProcessorList:
        for name, steadied in (("num_beams", 1), ("prompt_lookup_num_tokens", None), ("guidance_scale", 1)):
            value = getattr(generation_config, name, None)
            if value not in (None, steadied):
                raise InputError(
                    f"generate({name}={value}) cannot be steadied: a row of the batch is then not one answer.",
                    f"Leave {name} out, or call footing.detach() first.",
                )
        original = type(self._model)._get_logits_processor(self._model, generation_config, *args, **kwargs)
        generation_config.disable_compile = True  # a compiled forward would not come by the probe
        self._run = _Run(self._probe, generation_config, self._acting)
        return self._run.place(original)

    def _get_stopping_criteria(self, *args: Any, **kwargs: Any) -> Any:
        criteria = type(self._model)._get_stopping_criteria(self._model, *args, **kwargs)
        if self._run is None:
            return criteria
        fuse = [_Fuse(self._run)] if self.profile.fuse is not None else []
        return _Criteria([*criteria, *fuse], self._run)


class _Run:
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

    def ledger(self) -> Ledger:
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

    def __init__(self, run: _Run) -> None:
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

    def __init__(self, run: _Run) -> None:
        self._run = run

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        assert self._run.overrides is not None
        return limit_top_p(scores, self._run.overrides.top_p)


class _Redraw(LogitsProcessor):
    """Where blocks disagree, make a first draw and drop it (S6.2); ``generate`` makes the second."""

    def __init__(self, run: _Run) -> None:
        self._run = run

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        assert self._run.overrides is not None
        again = self._run.overrides.resample
        if bool(again.any()):
            torch.multinomial(scores[again].softmax(-1), 1)
        return scores


class _Acknowledge(LogitsProcessor):
    """Last of all: what is decided has now been applied."""

    def __init__(self, run: _Run) -> None:
        self._run = run

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._run.acknowledge()
        return scores


class _Criteria(StoppingCriteriaList):
    """All of ``generate``'s criteria; notes which rows each step ended, for whatever reason."""

    def __init__(self, criteria: list[Any], run: _Run) -> None:
        super().__init__(criteria)
        self._run = run

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        ended: Tensor = super().__call__(input_ids, scores, **kwargs)
        self._run.ended.append(ended)
        return ended


class _Fuse(StoppingCriteria):
    """End a row whose fuse has blown."""

    def __init__(self, run: _Run) -> None:
        self._run = run

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        assert self._run.overrides is not None
        return self._run.overrides.stop


def attach(
    model: PreTrainedModel, profile: str | Profile = "careful", *, acting: bool = True, tokenizer: Any = None
) -> Footing:
    """Steady every following ``model.generate(...)`` by ``profile``.

    Parameters
    ----------
    model : PreTrainedModel
        A decoder-only Transformers model on the library's attention interface.
    profile : str or Profile
        A built-in name, the path of a profile's JSON file, or a profile.
    acting : bool
        False only measures: traces are made, nothing is overridden.
    tokenizer : PreTrainedTokenizer, optional
        Fills in the texts of the traces.

    Returns
    -------
    Footing
        Also a context manager that detaches at its end.

    Raises
    ------
    ModelError
        The model cannot be observed.
    ProfileError
        The profile is unusable, or asks for layers the model does not have.
    InputError
        The model is attached already; later, ``generate`` with beams, an assistant model or guidance.

    Warns
    -----
    ProfileWarning
        The profile was calibrated on another model.

    Examples
    --------
    >>> with surefoot.attach(model, "careful") as footing:  # doctest: +SKIP
    ...     output = model.generate(**inputs, do_sample=True, temperature=0.8)
    >>> footing.traces[0].summary()  # doctest: +SKIP
    """
    if "generate" in model.__dict__:
        raise InputError(f"this {type(model).__name__} is attached already.", "Call detach() on its footing first.")
    profile = profile if isinstance(profile, Profile) else load_profile(profile)
    for problem in check_profile(profile, model):
        warnings.warn(problem, stacklevel=2)
    return Footing(model, profile, acting=acting, tokenizer=tokenizer)
