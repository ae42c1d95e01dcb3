"""Start a server: model, profiles, uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable
from typing import Any

import uvicorn

from surefoot.control import Profile
from surefoot.engines.identity import check_profile
from surefoot.engines.probe import Probe
from surefoot.engines.transformers import TransformersEngine
from surefoot.models import DEFAULT_MODEL, load_model
from surefoot.serve.app import make_app
from surefoot.serve.profiles import ProfileStore
from surefoot.serve.server import Server
from surefoot.serve.settings import Settings

# The default model has calibrated profiles; another one is only observed until it has.
_DOMAINS = {"creative": "creative"}


def make_server(settings: Settings, model: Any = None, tokenizer: Any = None) -> Server:
    """A server with its model loaded and its profiles checked against it.

    Parameters
    ----------
    settings : Settings
    model, tokenizer : optional
        Instead of the model that the settings name.
    """
    if model is None:
        model, tokenizer = load_model(settings.model, logging.getLogger("surefoot.serve").info)
    calibrated = settings.model == DEFAULT_MODEL and settings.profile is None
    default = settings.profile or ("careful" if calibrated else "observe")
    domains = (_DOMAINS if calibrated else {}) | settings.domains

    def fits(profile: Profile) -> list[str]:
        Probe(model, profile)
        return [str(w) for w in check_profile(profile, model)]

    store = ProfileStore(default, domains, tuple(settings.ab), fits)
    return Server(settings, TransformersEngine(model, tokenizer), store)


def serve(settings: Settings, started: Callable[[Server, int], None]) -> None:
    """Serve until a signal comes; streams in flight may then finish within the grace period.

    Parameters
    ----------
    settings : Settings
    started : callable
        Called with the server and its port once it listens.
    """
    server = make_server(settings)
    config = uvicorn.Config(
        make_app(server),
        host=settings.host,
        port=settings.port,
        log_level="warning",
        timeout_graceful_shutdown=round(settings.grace_seconds) + 5,  # answers are ended before that
        h11_max_incomplete_event_size=64 * 1024,
    )
    # The loop shares the interpreter with the model's threads; waiting 5 ms for its turn would show in every token.
    sys.setswitchinterval(0.0005)
    asyncio.run(_run(_Uvicorn(config, server), started))


class _Uvicorn(uvicorn.Server):
    """Tells the server of ours that it stops, so that /ready says so and no new answer begins."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self.surefoot = server

    def handle_exit(self, sig: int, frame: Any) -> None:
        """On SIGINT and SIGTERM."""
        self.surefoot.stopping = True
        super().handle_exit(sig, frame)


async def _run(uvicorn_server: _Uvicorn, started: Callable[[Server, int], None]) -> None:
    serving = asyncio.create_task(uvicorn_server.serve())
    while not uvicorn_server.started and not serving.done():
        await asyncio.sleep(0.01)
    if uvicorn_server.started:
        port = uvicorn_server.servers[0].sockets[0].getsockname()[1]
        started(uvicorn_server.surefoot, port)
    ending = asyncio.create_task(_end(uvicorn_server))
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    ending.cancel()


async def _end(uvicorn_server: _Uvicorn) -> None:
    """When the grace period is over, end the answers in flight as they are."""
    while not uvicorn_server.should_exit:
        await asyncio.sleep(0.1)
    await asyncio.sleep(uvicorn_server.surefoot.settings.grace_seconds)
    uvicorn_server.surefoot.slots.cancel_all("shutdown")
