"""The embedded engine: Transformers in this process, one answer a stream."""

from __future__ import annotations

import inspect
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from surefoot.control import Controller, Ledger, SamplerStep, Trace
from surefoot.control import overrides as row
from surefoot.engines.base import FinishReason, Request, Step
from surefoot.engines.cache import growing_cache
from surefoot.engines.chat import Message, chat_text, context_length, end_ids
from surefoot.engines.identity import check_profile, identity
from surefoot.engines.probe import Probe, find_layers
from surefoot.engines.sampler import draw
from surefoot.engines.text import TextStream
from surefoot.errors import InputError, NonFiniteLogitsError


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
        self.turn = threading.Lock()
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
        for problem in check_profile(request.profile, self.model):
            warnings.warn(problem, stacklevel=2)
        return TransformersGeneration(self, request, self.encode(request.prompt))

    def encode(self, prompt: str | list[Message]) -> Tensor:
        """``(1, T)`` token ids of a prompt in the model's chat format."""
        ids = self.tokenizer(chat_text(self.tokenizer, prompt), add_special_tokens=False)["input_ids"]
        if not ids:
            raise InputError("the prompt has no tokens.")
        if self.context is not None and len(ids) >= self.context:
            raise InputError(
                f"the prompt has {len(ids)} tokens, and the model's context is {self.context}.", "Shorten the prompt."
            )
        return torch.tensor([ids], device=self.model.device)


class TransformersGeneration:
    """One answer in the making; see `engines.base.Generation`."""

    def __init__(self, engine: TransformersEngine, request: Request, ids: Tensor) -> None:
        self.request = request
        self.prompt_tokens = ids.shape[1]
        self.trace = Trace(request.profile)
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.cancelled = threading.Event()
        self._engine = engine
        self._ids = ids
        self._probe = Probe(engine.model, request.profile)
        self._controller = Controller(request.profile, 1, ids.device)
        self._slot = torch.zeros(1, dtype=torch.int64, device=ids.device)
        self._controller.reset(self._slot, request.temperature, request.top_p, request.acting)
        self._cache = growing_cache(engine.model.config)
        self._generator = None
        if request.seed is not None:
            self._generator = torch.Generator(ids.device).manual_seed(request.seed)

    def cancel(self) -> None:
        """End within one token; safe from any thread."""
        self.cancelled.set()

    def ledger(self) -> Ledger:
        """Overrides decided and applied so far."""
        return self._controller.ledger()

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
                    token, values = self._token(ids)
                # A token's own text may be half a character; the stream puts characters together.
                own = engine.tokenizer.decode([token])
                entry = self.trace.append(token, own, values, round((time.perf_counter() - start) * 1e3, 3))
                if token in engine.ends:
                    self.finish_reason = "eos"
                    yield Step("", entry)
                    break
                shown = stream.push(token)
                self.text += shown
                if stream.stopped:
                    self.finish_reason = "stop"
                elif values[row.STOP] > 0:
                    self.finish_reason = "fuse"
                yield Step(shown, entry)
                if self.finish_reason:
                    break
                ids = torch.tensor([[token]], device=ids.device)
            self.finish_reason = self.finish_reason or "length"
            rest = stream.flush()
            if rest:
                self.text += rest
                yield Step(rest, None)
        finally:
            self.finish_reason = self.finish_reason or "cancelled"

    def _token(self, ids: Tensor) -> tuple[int, list[float]]:
        """One forward pass over ``ids`` ``(1, T)``, measured, decided and drawn."""
        engine, request = self._engine, self.request
        kept = {"logits_to_keep": 1} if engine.keeps_logits else {}
        with torch.inference_mode(), self._probe.watching():
            output = engine.model(input_ids=ids, use_cache=True, **{engine.cache_argument: self._cache}, **kept)
            logits = output.logits[:, -1]
            signals = self._probe.signals(logits)
            overrides = self._controller.decide(signals, self._slot)
            values: list[float] = overrides.packed[:, 0].tolist()
            if values[row.ENTROPY] != values[row.ENTROPY]:
                raise NonFiniteLogitsError(len(self.trace.tokens) + 1)
            token = draw(
                logits,
                values[row.TEMPERATURE],
                values[row.TOP_P],
                top_k=request.top_k,
                times=2 if values[row.RESAMPLE] > 0 else 1,
                generator=self._generator,
            )
            self._controller.acknowledge(SamplerStep(overrides.sequence), self._slot)
        return token, values
