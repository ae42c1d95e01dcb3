"""What the tests of the server ask, and how they wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from surefoot.serve.app import make_app
from surefoot.serve.server import Server

QUESTION = [{"role": "user", "content": "What does a notary do?"}]


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
