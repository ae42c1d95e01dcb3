"""The contract every engine honours: a request goes in, tokens with their footing come out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from surefoot.control import Ledger, Profile, TokenTrace, Trace
from surefoot.engines.chat import Message, check_prompt
from surefoot.errors import InputError

FinishReason = Literal["eos", "length", "context", "stop", "fuse", "cancelled"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes
    ----------
    prompt : str or list of dict
        Text for one user turn, or messages with "role" and "content".
    profile : Profile or None
        What decides; None measures and overrides nothing.
    max_tokens : int
        Longest answer; the model's context may shorten it.
    temperature, top_p, top_k
        The request's own sampling; temperature 0 is greedy, top_p 1 and top_k None are off.
    seed : int or None
        For reproducible sampling.
    stop : tuple of str
        Strings that end the answer; they are not part of it.
    acting : bool
        False only measures.
    fuse : bool
        False reports a blown fuse and goes on.
    fail_open : bool
        Go on without measuring when that fails, rather than raise; `Generation.failed_open` says why.
    top_logprobs : int or None
        Give the log-probability of each token at temperature 1, and those of so many of the likeliest.
    """

    prompt: str | list[Message]
    profile: Profile | None
    max_tokens: int = 256
    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    acting: bool = True
    fuse: bool = True
    fail_open: bool = False
    top_logprobs: int | None = None

    def __post_init__(self) -> None:
        checks = (
            (self.max_tokens >= 1, f"max_tokens must be at least 1, got {self.max_tokens}"),
            (
                self.temperature == 0 or 1e-4 <= self.temperature <= 5,
                f"temperature must be 0, or from 0.0001 to 5, got {self.temperature}",
            ),
            (0 < self.top_p <= 1, f"top_p must be above 0 and at most 1, got {self.top_p}"),
            (self.top_k is None or self.top_k >= 1, f"top_k must be at least 1, got {self.top_k}"),
            (self.seed is None or 0 <= self.seed < 2**63, f"seed must be from 0 to 2**63 - 1, got {self.seed}"),
            (all(self.stop), "a stop string must not be empty"),
        )
        for holds, problem in checks:
            if not holds:
                raise InputError(f"{problem}.")
        check_prompt(self.prompt)


@dataclass(frozen=True, slots=True)
class Step:
    """One token as it leaves the engine.

    Attributes
    ----------
    text : str
        What can be shown now. It may lag behind the tokens: a character can need several, and the start of a stop
        string is held back.
    token : TokenTrace or None
        None for the last step, if it only brings text that was held back.
    logprob : float or None
        Of the token, natural logarithm; None when not asked for, and for the token that ends an answer.
    top_logprobs : tuple of (int, float)
        The likeliest tokens, likeliest first.
    """

    text: str
    token: TokenTrace | None
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


class Generation(Protocol):
    """An answer in the making: iterate over it for its steps.

    Attributes
    ----------
    trace : Trace
        All tokens so far.
    text : str
        All text shown so far.
    finish_reason : str or None
        None while it runs. length: `max_tokens`; context: the model's context is full.
    stop_string : str or None
        The stop string that ended it.
    failed_open : str or None
        Why it went on without measuring.
    prompt_tokens : int
        Tokens of the prompt.
    """

    trace: Trace
    text: str
    finish_reason: FinishReason | None
    stop_string: str | None
    failed_open: str | None
    prompt_tokens: int
    cancelled: threading.Event

    def __iter__(self) -> Iterator[Step]: ...

    def cancel(self) -> None:
        """End within one token; safe from any thread."""
        ...

    def ledger(self) -> Ledger:
        """Overrides decided and applied so far."""
        ...

    def room(self) -> tuple[int, int]:
        """Tokens that the cache has room for, and tokens in it."""
        ...


class Engine(Protocol):
    """Runs requests on one model."""

    model_name: str

    def stream(self, request: Request) -> Generation:
        """Begin an answer; `InputError` when the prompt does not fit."""
        ...

    def count(self, prompt: str | list[Message]) -> int:
        """Tokens of a prompt; `InputError` when it does not fit."""
        ...

    def token_text(self, token: int) -> str:
        """The text of one token on its own."""
        ...
