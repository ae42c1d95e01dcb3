"""The embedded engine: Transformers in this process, one answer a stream."""

from __future__ import annotations

import inspect
import math
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from surefoot.control import Controller, Ledger, Overrides, Profile, SamplerStep, Trace
from surefoot.control import overrides as row
from surefoot.engines.base import FinishReason, Request, Step
from surefoot.engines.cache import growing_cache, room_of
from surefoot.engines.chat import Message, chat_text, check_prompt, context_length, end_ids
from surefoot.engines.identity import check_profile, identity
from surefoot.engines.probe import Probe, find_layers
from surefoot.engines.sampler import draw
from surefoot.engines.text import TextStream
from surefoot.engines.turn import Turn
from surefoot.errors import InputError, ModelError, NonFiniteLogitsError

_LogProbs = tuple[float | None, tuple[tuple[int, float], ...]]


class TransformersEngine:
    """Streams answers of one model.

    Parameters
    ----------
    model, tokenizer
        A Transformers causal language model on the attention interface, and its tokenizer.

    Raises
    ------
    ModelError
        The model cannot be observed.

    Notes
    -----
    Streams may run in several threads. They take turns token by token: one forward pass at a time.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        find_layers(model)
        self.model, self.tokenizer = model, tokenizer
        self.model_name = identity(model)
        self.turn = Turn()
        self._tokenizing = threading.Lock()
        self.ends = end_ids(model, tokenizer)
        self.context = context_length(model)
        accepted = inspect.signature(model.forward).parameters
        # Transformers renamed the argument; models with code of their own may still have the old name.
        self.cache_argument = "cache" if "cache" in accepted else "past_key_values"
        self.keeps_logits = "logits_to_keep" in accepted

    def stream(self, request: Request) -> TransformersGeneration:
        """Begin an answer.

        Raises
        ------
        InputError
            The prompt leaves no room in the model's context.
        ProfileError
            The profile asks for layers the model does not have.

        Warns
        -----
        ProfileWarning
            The profile was calibrated on another model.
        """
        for problem in check_profile(request.profile, self.model) if request.profile else ():
            warnings.warn(problem, stacklevel=2)
        return TransformersGeneration(self, request, self.encode(request.prompt))

    def encode(self, prompt: str | list[Message]) -> Tensor:
        """``(1, T)`` token ids of a prompt in the model's chat format."""
        with self._tokenizing:  # a tokenizer may change while it works
            ids = self.tokenizer(chat_text(self.tokenizer, prompt), add_special_tokens=False)["input_ids"]
        if not ids:
            raise InputError("the prompt has no tokens.")
        if self.context is not None and len(ids) >= self.context:
            raise InputError(
                f"the prompt has {len(ids)} tokens, and the model's context is {self.context}.", "Shorten the prompt."
            )
        return torch.tensor([ids], device=self.model.device)

    def count(self, prompt: str | list[Message]) -> int:
        """Tokens of a prompt in the model's chat format; `InputError` when it is no text or too long."""
        check_prompt(prompt)
        return self.encode(prompt).shape[1]

    def token_text(self, token: int) -> str:
        """The text of one token on its own."""
        return str(self.tokenizer.decode([token]))


class TransformersGeneration:
    """One answer in the making; see `engines.base.Generation`."""

    def __init__(self, engine: TransformersEngine, request: Request, ids: Tensor) -> None:
        self.request = request
        self.prompt_tokens = ids.shape[1]
        self.trace = Trace(request.profile)
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.stop_string: str | None = None
        self.failed_open: str | None = None
        self.cancelled = threading.Event()
        self._engine = engine
        self._ids = ids
        self._footing: _Footing | None = None
        self._ended = Ledger(0, 0)
        if request.profile is not None:
            self._footing = _Footing(engine.model, request.profile, request)
        self._cache: Any = growing_cache(engine.model.config)
        self._room = (0, 0)
        self._generator = None
        if request.seed is not None:
            self._generator = torch.Generator(ids.device).manual_seed(request.seed)

    def cancel(self) -> None:
        """End within one token; safe from any thread."""
        self.cancelled.set()

    def ledger(self) -> Ledger:
        """Overrides decided and applied so far."""
        return self._footing.controller.ledger() if self._footing else self._ended

    def room(self) -> tuple[int, int]:
        """Tokens that the cache has room for, and tokens in it, summed over layers."""
        return room_of(self._cache) if self._cache is not None else self._room

    def __iter__(self) -> Iterator[Step]:
        """Decode; each step is one token. Closing the iterator early cancels."""
        if self.trace.tokens or self.finish_reason:
            raise RuntimeError("an answer can be iterated once; begin another with `stream`")
        engine, request = self._engine, self.request
        room = request.max_tokens if engine.context is None else engine.context - self.prompt_tokens
        stream = TextStream(engine.tokenizer, request.stop)
        ids = self._ids
        try:
            for _ in range(min(request.max_tokens, room)):
                if self.cancelled.is_set():
                    self.finish_reason = "cancelled"
                    break
                start = time.perf_counter()
                with engine.turn:
                    token, values, logprobs = self._token(ids)
                # A token's own text may be half a character; the stream puts characters together.
                own = engine.tokenizer.decode([token])
                entry = self.trace.append(token, own, values, round((time.perf_counter() - start) * 1e3, 3))
                if token in engine.ends:
                    self.finish_reason = "eos"
                    yield Step("", entry)
                    break
                shown = stream.push(token)
                self.text += shown
                if stream.stopped_by is not None:
                    self.finish_reason, self.stop_string = "stop", stream.stopped_by
                elif values[row.STOP] > 0 and request.fuse:
                    self.finish_reason = "fuse"
                yield Step(shown, entry, *logprobs)
                if self.finish_reason:
                    break
                ids = torch.tensor([[token]], device=ids.device)
            if self.finish_reason is None:
                self.finish_reason = "length" if request.max_tokens <= room else "context"
            rest = stream.flush()
            if rest:
                self.text += rest
                yield Step(rest, None)
        finally:
            self.finish_reason = self.finish_reason or "cancelled"
            self._release()

    def _release(self) -> None:
        """Free keys and values now: the answer outlives them, and collecting cycles takes its time."""
        self._room, self._ended = self.room(), self.ledger()
        self._cache = self._footing = None

    def _token(self, ids: Tensor) -> tuple[int, list[float], _LogProbs]:
        """One forward pass over ``ids`` ``(1, T)``, measured, decided and drawn."""
        engine, request = self._engine, self.request
        kept = {"logits_to_keep": 1} if engine.keeps_logits else {}
        watching = self._footing.probe.watching() if self._footing else nullcontext()
        with torch.inference_mode(), watching:
            try:
                output = engine.model(input_ids=ids, use_cache=True, **{engine.cache_argument: self._cache}, **kept)
            except ValueError as error:
                if "cache" not in str(error):
                    raise
                raise ModelError(f"{type(engine.model).__name__} does not take surefoot's cache: {error}") from error
            logits = output.logits[:, -1]
            values = self._decide(logits)
            token = draw(
                logits,
                values[row.TEMPERATURE],
                values[row.TOP_P],
                top_k=request.top_k,
                times=2 if values[row.RESAMPLE] > 0 else 1,
                generator=self._generator,
            )
            if self._footing:
                self._footing.acknowledge()
            logprobs = _log_probabilities(logits, token, request.top_logprobs)
        return token, values, logprobs

    def _decide(self, logits: Tensor) -> list[float]:
        """A column of `Overrides.packed` for this token."""
        if self._footing is not None:
            try:
                values = self._footing.decide(logits)
            except Exception as error:
                if not self.request.fail_open:
                    raise
                # The answer matters more than its footing; whoever asked is told.
                self.failed_open = f"{type(error).__name__}: {error}"
                self._ended = self._footing.controller.ledger()
                self._footing = None
            else:
                if values[row.ENTROPY] != values[row.ENTROPY]:
                    raise NonFiniteLogitsError(len(self.trace.tokens) + 1)
                return values
        if bool(logits.isnan().any()):
            raise NonFiniteLogitsError(len(self.trace.tokens) + 1)
        values = [math.nan] * row.ROWS
        values[row.TEMPERATURE], values[row.TOP_P] = self.request.temperature, self.request.top_p
        values[row.STATE] = values[row.FRESH] = values[row.SEQUENCE] = values[row.STOP] = values[row.RESAMPLE] = 0.0
        return values


class _Footing:
    """What measures and decides one answer: a probe, and a controller with one slot."""

    def __init__(self, model: Any, profile: Profile, request: Request) -> None:
        device = model.device
        self.probe = Probe(model, profile, fail_late=request.fail_open)
        self.controller = Controller(profile, 1, device)
        self._slot = torch.zeros(1, dtype=torch.int64, device=device)
        self._overrides: Overrides | None = None
        self.controller.reset(self._slot, request.temperature, request.top_p, request.acting)

    def decide(self, logits: Tensor) -> list[float]:
        """Decide the step that made ``logits`` ``(1, V)``."""
        self._overrides = self.controller.decide(self.probe.signals(logits), self._slot)
        values: list[float] = self._overrides.packed[:, 0].tolist()
        return values

    def acknowledge(self) -> None:
        """The decision is applied."""
        assert self._overrides is not None
        self.controller.acknowledge(SamplerStep(self._overrides.sequence), self._slot)


def _log_probabilities(logits: Tensor, token: int, top: int | None) -> _LogProbs:
    """Log-probability of ``token`` and the ``top`` likeliest, at temperature 1, and at least -9999 (JSON)."""
    if top is None:
        return None, ()
    log_p = logits[0].float().log_softmax(-1).clamp(min=-9999.0)
    values, indices = log_p.topk(min(top, log_p.shape[0]))
    return float(log_p[token]), tuple(zip(indices.tolist(), values.tolist(), strict=True))
