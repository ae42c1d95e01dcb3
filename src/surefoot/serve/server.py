"""What all endpoints share: the model, the profiles, the slots, and how an answer begins."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
from fastapi import Request as HTTPRequest

from surefoot.engines.base import Engine, Request
from surefoot.errors import InputError, ProfileError
from surefoot.monitor import Metrics
from surefoot.serve.ab import CONTROL
from surefoot.serve.answer import Answer
from surefoot.serve.errors import APIError, stopping
from surefoot.serve.policy import make_plan
from surefoot.serve.profiles import ProfileStore
from surefoot.serve.settings import Settings
from surefoot.serve.slots import QueueFullError, Slots
from surefoot.serve.traces import TraceStore
from surefoot.ssp.grammar import Directive

TIMEOUT_HEADERS = ("x-surefoot-timeout", "x-claude-timeout")
CONVERSATION_HEADER = "x-surefoot-conversation"


@dataclass(slots=True)
class Sampling:
    """A request's own settings, whichever API they came by."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None


class Server:
    """State of a running server.

    Parameters
    ----------
    settings : Settings
    engine : Engine
    store : ProfileStore
    """

    def __init__(self, settings: Settings, engine: Engine, store: ProfileStore) -> None:
        self.settings, self.engine, self.profiles = settings, engine, store
        self.model_id = engine.model_name.partition(" (")[0]  # without the shape, which matters to profiles only
        self.metrics = Metrics()
        self.slots = Slots(settings.slots, settings.queue, self.metrics)
        self.traces = TraceStore(settings.keep_traces, settings.keep_days, settings.traces, settings.keep_text)
        self.steady = settings.steady
        self.stopping = False

    async def begin(
        self, http: HTTPRequest, messages: list[dict[str, str]], sampling: Sampling, *, user: str | None
    ) -> Answer:
        """Queue an answer.

        Raises
        ------
        APIError
            400: the prompt, a setting or the profile cannot be used. 429 or 529: the queue is full. 503: stopping.
        """
        arrived = http.scope["state"].get("arrived", time.monotonic())
        endpoint = "chat" if http.url.path.startswith("/v1/chat") else "messages"
        if self.stopping:
            raise stopping()
        if sampling.max_tokens > self.settings.max_tokens:
            raise APIError(400, f"max_tokens is at most {self.settings.max_tokens} here.", param="max_tokens")
        directive: Directive = http.scope["state"].get("directive") or Directive()
        owner = http.scope["state"].get("owner", "")
        deadline = arrived + self.timeout(http)
        try:
            self.slots.check()  # before the prompt is worked on
            first = next((m["content"] for m in messages if m["role"] == "user"), "")
            key = user or http.headers.get(CONVERSATION_HEADER) or f"{owner}:{first}"
            plan = make_plan(directive, self.profiles, steady=self.steady, shares=self.settings.ab, key=key)
            request = Request(
                messages,
                plan.profile,
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                seed=directive.seed if directive.seed is not None else sampling.seed,
                stop=sampling.stop,
                acting=plan.acting,
                fuse=plan.fuse,
                fail_open=True,
                top_logprobs=sampling.logprobs,
            )
            generation = await anyio.to_thread.run_sync(self.engine.stream, request)
            job = self.slots.submit(generation, deadline)
        except (InputError, ProfileError) as error:
            raise APIError(400, str(error)) from error
        except QueueFullError as error:
            status = 429 if endpoint == "chat" else 529
            self.metrics.requests.labels(endpoint, "queue_full", CONTROL).inc()
            raise APIError(status, str(error), headers={"Retry-After": str(error.retry_after)}) from error
        return Answer(
            plan,
            job,
            messages,
            endpoint=endpoint,
            owner=owner,
            arrived=arrived,
            safe_responses=self.settings.safe_responses,
            traces=self.traces,
            metrics=self.metrics,
        )

    async def count(self, messages: list[dict[str, str]]) -> int:
        """Tokens of a prompt; `APIError` when the model cannot take it."""
        try:
            return await anyio.to_thread.run_sync(self.engine.count, messages)
        except InputError as error:
            raise APIError(400, str(error)) from error

    def timeout(self, http: HTTPRequest) -> float:
        """Seconds the request may take: the smaller of its header (milliseconds) and the server's maximum."""
        seconds = self.settings.max_seconds
        for name in TIMEOUT_HEADERS:
            value = http.headers.get(name)
            if value is None:
                continue
            if not (value.isascii() and value.isdigit() and int(value[:12]) > 0):
                raise APIError(400, f"{name} is a whole number of milliseconds above 0, not '{value[:40]}'.")
            seconds = min(seconds, int(value[:12]) / 1e3)
        return seconds


def server_of(http: HTTPRequest) -> Server:
    """The server that a request came to."""
    server: Any = http.app.state.server
    assert isinstance(server, Server)
    return server
