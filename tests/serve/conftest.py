"""Servers for the tests: the default model, and a tiny one for floods; each a real uvicorn on a free port."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from surefoot.control import Action, FuseRule, HighRule, Profile
from surefoot.serve.app import make_app
from surefoot.serve.server import Server
from surefoot.serve.settings import Settings
from surefoot.serve.start import make_server

QUESTION = [{"role": "user", "content": "What does a notary do?"}]
# Any five entropies count as too even: a fuse that blows at the fifth token.
FUSE = Profile(name="fuse", fuse=FuseRule(window=5, std_below=100.0))
COOL = Profile(name="cool", high=HighRule(threshold=-1e9, action=Action(temperature=0.2, hold=2)))


@contextmanager
def serving(server: Server) -> Iterator[str]:
    """Serve from a thread; the address."""
    config = uvicorn.Config(make_app(server), host="127.0.0.1", port=0, log_level="warning")
    running = uvicorn.Server(config)
    running.install_signal_handlers = lambda: None
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    port = running.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        running.should_exit = True
        thread.join(timeout=20)


@pytest.fixture(scope="session")
def real(smollm: Any) -> Iterator[tuple[str, Server]]:
    """The default model, served with its own profiles, and one whose fuse always blows."""
    server = make_server(Settings(max_seconds=120), *smollm)
    server.profiles.put("fuse", FUSE.model_dump(mode="json"))
    with serving(server) as address:
        yield address, server


@pytest.fixture(scope="session")
def real_address(real: tuple[str, Server]) -> str:
    return real[0]


@pytest.fixture
def small(byte_model: Any) -> Iterator[Callable[..., tuple[str, Server]]]:
    """``small(**settings)``: a tiny model, served; several a test if it likes."""
    opened = []

    def start(**settings: Any) -> tuple[str, Server]:
        server = make_server(Settings(model="tiny", **settings), *byte_model)
        for profile in (FUSE, COOL):
            server.profiles.put(profile.name, profile.model_dump(mode="json"))
        context = serving(server)
        address = context.__enter__()
        opened.append(context)
        return address, server

    yield start
    for context in opened:
        context.__exit__(None, None, None)


def ask(address: str, **body: Any) -> httpx.Response:
    """A request of the Messages API, with headers in ``headers``."""
    headers = body.pop("headers", {})
    wanted = {"model": "any", "max_tokens": 8, "messages": QUESTION} | body
    return httpx.post(f"{address}/v1/messages", json=wanted, headers=headers, timeout=120)


def idle(server: Server, seconds: float = 20.0) -> None:
    """Wait until no slot is at work and nobody waits."""
    end = time.monotonic() + seconds
    while server.slots.running or server.slots.waiting:
        assert time.monotonic() < end, f"{server.slots.running} running, {server.slots.waiting} waiting"
        time.sleep(0.01)
