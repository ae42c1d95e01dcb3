"""SSP for any ASGI server of the two APIs: reads the instruction, takes it out of the body, hands both on."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from surefoot.ssp.body import take_from_body
from surefoot.ssp.grammar import Directive, SSPError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PATHS = ("/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions", "/v1/completions")


class SSPMiddleware:
    """Reads and removes the instruction of each request.

    Parameters
    ----------
    app : ASGI application
    place : callable
        ``place(directive, body, scope)`` says how the directive travels on, for example into ``scope["state"]``.
    refuse : callable
        ``refuse(path, status, message)``: the ASGI application that answers a bad request in the API's own shape.
    max_bytes : int
        Larger bodies get 413: this stands before whatever else limits them.
    """

    def __init__(
        self,
        app: App,
        *,
        place: Callable[[Directive, dict[str, Any], Scope], None],
        refuse: Callable[[str, int, str], App],
        max_bytes: int,
    ) -> None:
        self.app = app
        self._place, self._refuse, self._max_bytes = place, refuse, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI call."""
        if scope["type"] != "http" or scope["method"] not in ("POST", "PUT", "PATCH"):
            await self.app(scope, receive, send)
            return
        try:
            raw = await self._read(receive)
        except _ClientGoneError:
            return
        except ValueError:
            message = f"the body is larger than {self._max_bytes} bytes."
            await self._refuse(scope["path"], 413, message)(scope, receive, send)
            return
        if scope["method"] == "POST" and scope["path"] in PATHS:
            try:
                body = json.loads(raw)
            except (ValueError, RecursionError):
                body = None  # the API's own validation says what is wrong
            if isinstance(body, dict):
                try:
                    directive = take_from_body(body)
                except SSPError as error:
                    await self._refuse(scope["path"], 400, str(error))(scope, receive, send)
                    return
                self._place(directive, body, scope)
                raw = json.dumps(body).encode()
                scope = {**scope, "headers": _with_length(scope["headers"], len(raw))}
        await self.app(scope, _replay(raw, receive), send)

    async def _read(self, receive: Receive) -> bytes:
        chunks, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _ClientGoneError
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self._max_bytes:
                raise ValueError
            more = message.get("more_body", False)
        return b"".join(chunks)


class _ClientGoneError(Exception):
    """The client has left."""


def _with_length(headers: list[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    kept = [(k, v) for k, v in headers if k.lower() not in (b"content-length", b"transfer-encoding")]
    return [*kept, (b"content-length", str(length).encode())]


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the body once, then what the server says (a disconnect)."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
