"""The ASGI application."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

from fastapi import FastAPI
from fastapi import Request as HTTPRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from surefoot import __version__
from surefoot.serve import chat, messages, operations
from surefoot.serve.errors import APIError, refusal
from surefoot.serve.keys import KeyMiddleware, Keys
from surefoot.serve.server import Server
from surefoot.ssp.grammar import Directive
from surefoot.ssp.middleware import SSPMiddleware

log = logging.getLogger("surefoot.serve")
_PAGE = resources.files("surefoot.serve") / "playground"
_ABOUT = """Sure-footed decoding for an open-weight language model, behind the Messages and Chat Completions APIs.

How a request asks for footing, on the first line of its system text:
`SSP:domain=legal;confidence=high;tolerance=strict;fallback=conservative`, or in the body's field `surefoot`."""


def make_app(server: Server) -> FastAPI:
    """The application that serves ``server``."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        server.slots.close()

    app = FastAPI(
        title="surefoot",
        version=__version__,
        description=_ABOUT,
        lifespan=lifespan,
        responses={400: {"description": "The request cannot be used; the message says why."}},
    )
    app.state.server = server
    app.state.since = int(time.time())
    for module in (messages, chat, operations):
        app.include_router(module.router)

    @app.get("/", include_in_schema=False)
    async def playground() -> Response:
        return FileResponse(str(_PAGE / "index.html"))

    app.mount("/playground", StaticFiles(directory=str(_PAGE)), name="playground")
    app.add_exception_handler(APIError, _api_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _failure)
    # The last one added sees a request first: arrival, key, SSP.
    app.add_middleware(
        SSPMiddleware,
        place=_place,
        refuse=refusal,
        max_bytes=server.settings.max_body,
    )
    admin = (server.settings.admin_key,) if server.settings.admin_key else ()
    app.add_middleware(KeyMiddleware, keys=Keys((*server.settings.api_keys, *admin)), admin=Keys(admin))
    app.add_middleware(_Arrival)
    return app


class _Arrival:
    """Notes when a request came: timeouts and latencies count from here."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope.setdefault("state", {})["arrived"] = time.monotonic()
        await self.app(scope, receive, send)


def _place(directive: Directive, body: dict[str, Any], scope: Any) -> None:
    scope["state"]["directive"] = directive


async def _api_error(http: HTTPRequest, error: Exception) -> Response:
    assert isinstance(error, APIError)
    return refusal(http.url.path, error.status, error.message, param=error.param, headers=error.headers)


async def _validation_error(http: HTTPRequest, error: Exception) -> Response:
    """Every problem of the body, by field, without what was sent: that may be secret or huge."""
    assert isinstance(error, RequestValidationError)
    lines = []
    for problem in error.errors()[:5]:
        where = ".".join(str(x) for x in problem["loc"] if x != "body") or "body"
        lines.append(f"{where[:200]}: {problem['msg'][:300]}")
    param = ".".join(str(x) for x in error.errors()[0]["loc"][1:])[:200]
    return refusal(http.url.path, 400, "; ".join(lines), param=param or None)


async def _http_error(http: HTTPRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    return refusal(http.url.path, error.status_code, str(error.detail), headers=headers)


async def _failure(http: HTTPRequest, error: Exception) -> Response:
    log.error("a request failed", exc_info=error)
    return refusal(http.url.path, 500, "the server failed on this request; its log says why.")
