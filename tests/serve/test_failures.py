"""Answers that fail on the way, which a sound model cannot be made to do: the step is made to fail here."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import openai
import pytest
from client import QUESTION, ask, idle

from surefoot.engines.transformers import TransformersGeneration
from surefoot.errors import NonFiniteLogitsError
from surefoot.serve.server import Server

Small = Callable[..., tuple[str, Server]]


@pytest.fixture
def fail_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Exception], None]:
    def arrange(token: int, error: Exception) -> None:
        sound = TransformersGeneration._token

        def failing(self: TransformersGeneration, ids: Any) -> Any:
            if len(self.trace.tokens) + 1 == token:
                raise error
            return sound(self, ids)

        monkeypatch.setattr(TransformersGeneration, "_token", failing)

    return arrange


def events(address: str, path: str = "/v1/messages") -> list[Any]:
    body = {"model": "any", "max_tokens": 30, "stream": True, "messages": QUESTION}
    with httpx.stream("POST", address + path, json=body) as response:
        assert response.status_code == 200
        return [line[6:] for line in response.iter_lines() if line.startswith("data: ")]


@pytest.mark.parametrize("token", [1, 12])
def test_a_stream_that_fails_ends_with_an_error_event_and_no_empty_block(
    small: Small, fail_at: Any, token: int
) -> None:
    address, server = small()
    fail_at(token, NonFiniteLogitsError(token))
    said = [json.loads(e) for e in events(address)]
    kinds = [e["type"] for e in said]
    assert kinds[0] == "message_start" and kinds[-1] == "error" and "message_stop" not in kinds
    assert "not finite" in said[-1]["error"]["message"]
    text = "".join(e["delta"]["text"] for e in said if e["type"] == "content_block_delta")
    assert ("content_block_start" in kinds) == bool(text) == (token > 1)
    idle(server)
    client = anthropic.Anthropic(base_url=address, api_key="none", max_retries=0)
    with pytest.raises(anthropic.APIStatusError, match="not finite"):
        list(client.messages.create(model="any", max_tokens=30, messages=QUESTION, stream=True))


def test_openai_s_client_learns_of_it_too(small: Small, fail_at: Any) -> None:
    address, server = small()
    fail_at(5, NonFiniteLogitsError(5))
    said = [json.loads(e) for e in events(address, "/v1/chat/completions")]
    assert "not finite" in said[-1]["error"]["message"]
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.APIError, match="not finite"):
        list(client.chat.completions.create(model="any", messages=QUESTION, stream=True))
    idle(server)


def test_a_fault_of_ours_is_logged_and_not_told(small: Small, fail_at: Any, caplog: pytest.LogCaptureFixture) -> None:
    address, server = small()
    fail_at(3, RuntimeError("/secret/path"))
    for answer in (ask(address).text, events(address)[-1]):
        assert "its log says why" in answer and "secret" not in answer
    assert "/secret/path" in caplog.text
    idle(server)
    assert 'outcome="error"' in httpx.get(f"{address}/metrics").text


def test_the_trace_of_a_failed_answer_is_kept(small: Small, fail_at: Any) -> None:
    _, server = small()
    address, server = small()
    fail_at(4, NonFiniteLogitsError(4))
    assert ask(address).status_code == 500
    (record,) = server.traces._kept.values()
    assert record["outcome"] == "error" and len(record["tokens"]) == 3
