"""Servers for the tests: the default model, and a tiny one for floods; each a real uvicorn on a free port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from client import serving

from surefoot.control import Action, FuseRule, HighRule, Profile
from surefoot.serve.server import Server
from surefoot.serve.settings import Settings
from surefoot.serve.start import make_server

# Any five entropies count as too even: a fuse that blows at the fifth token.
FUSE = Profile(name="fuse", fuse=FuseRule(window=5, std_below=100.0))
COOL = Profile(name="cool", high=HighRule(threshold=-1e9, action=Action(temperature=0.2, hold=2)))


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
        server.engine.ends = set()  # a random model ends an answer at random
        for profile in (FUSE, COOL):
            server.profiles.put(profile.name, profile.model_dump(mode="json"))
        context = serving(server)
        address = context.__enter__()
        opened.append(context)
        return address, server

    yield start
    for context in opened:
        context.__exit__(None, None, None)
