"""How an answer leaves: whole, or as a stream of events, with the client watched either way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request as HTTPRequest
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus

from surefoot.errors import SurefootError
from surefoot.serve.answer import Answer, Piece
from surefoot.serve.errors import APIError, stopping

log = logging.getLogger("surefoot.serve")

# Streams in flight are finished when the server stops; the library would end them at once.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]

PING_SECONDS = 15
Event = tuple[str | None, dict[str, Any] | str]


async def whole(http: HTTPRequest, answer: Answer) -> list[Piece]:
    """All pieces of an answer; generation ends within one token when the client leaves.

    Raises
    ------
    APIError
        408: no token before the timeout. 503: none before the server stopped. 500 for what is the server's fault.
    """

    async def watch() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass
        answer.job.cancel("disconnect")

    watching = asyncio.create_task(watch())
    try:
        pieces = [piece async for piece in answer.pieces(streamed=False)]
    except Exception as error:
        raise APIError(500, told(error)) from error
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    if nothing := unanswered(answer):
        raise nothing
    return pieces


def unanswered(answer: Answer) -> APIError | None:
    """The error for an answer that was cut short before its first token; None when there is something to send."""
    if answer.generation.trace.tokens:
        return None
    if answer.job.cause == "timeout":
        return APIError(408, "the timeout passed before the first token. Allow more time, or ask again later.")
    return stopping() if answer.job.cause == "shutdown" else None


def streamed(events: AsyncIterator[Event]) -> EventSourceResponse:
    """Named or nameless events as Server-Sent Events."""

    async def sent() -> AsyncIterator[ServerSentEvent]:
        async for name, data in events:
            text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
            yield ServerSentEvent(text, event=name, sep="\n")

    return EventSourceResponse(sent(), ping=PING_SECONDS, sep="\n")


def told(error: Exception) -> str:
    """What the client may know of an error in the middle of an answer; the rest goes to the log."""
    if isinstance(error, SurefootError):
        return str(error)
    log.error("an answer failed", exc_info=error)
    return "the answer failed inside the server; its log says why."
