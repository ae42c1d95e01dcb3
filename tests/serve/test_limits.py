"""Keys, sizes, the queue, timeouts, clients that leave, and failing probes."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from client import ask, idle
from pydantic import ValidationError

from surefoot.engines.look import Look
from surefoot.serve.server import Server
from surefoot.serve.settings import Settings

Small = Callable[..., tuple[str, Server]]
LONG: dict[str, Any] = {"max_tokens": 150}


def metric(address: str, name: str) -> float:
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    return float(next((line.split()[-1] for line in lines if line.startswith(name)), "0"))


# ── keys ──


def test_without_keys_only_loopback_is_allowed() -> None:
    with pytest.raises(ValidationError, match="SUREFOOT_API_KEYS"):
        Settings(host="0.0.0.0")
    assert Settings(host="0.0.0.0", api_keys=("long-enough",)).host == "0.0.0.0"
    assert "long-enough" not in repr(Settings(api_keys=("long-enough",)))


@pytest.mark.parametrize(
    "headers",
    [{"x-api-key": "key-of-ann"}, {"Authorization": "Bearer key-of-ann"}, {"Authorization": "bearer key-of-ann"}],
)
def test_both_ways_of_sending_a_key_work(small: Small, headers: dict[str, str]) -> None:
    address, _ = small(api_keys=("key-of-ann", "key-of-bob"))
    assert ask(address, headers=headers).status_code == 200


def test_requests_without_a_key_are_refused_in_the_api_s_shape(small: Small) -> None:
    address, _ = small(api_keys=("key-of-ann",))
    refused = ask(address, headers={"x-api-key": "key-of-eve"})
    assert refused.status_code == 401 and refused.json()["error"]["type"] == "authentication_error"
    body = {"model": "any", "messages": [{"role": "user", "content": "?"}]}
    refused = httpx.post(f"{address}/v1/chat/completions", json=body)
    assert refused.status_code == 401 and "code" in refused.json()["error"]
    for path in ("/v1/models", "/v1/profiles", "/v1/traces/x", "/openapi.json"):
        assert httpx.get(address + path).status_code == 401
    for path in ("/", "/health", "/ready", "/metrics", "/playground/app.js"):
        assert httpx.get(address + path).status_code == 200


def test_a_trace_is_read_with_the_key_that_made_it(small: Small) -> None:
    address, _ = small(api_keys=("key-of-ann", "key-of-bob"))
    ann, bob = {"x-api-key": "key-of-ann"}, {"x-api-key": "key-of-bob"}
    trace_id = ask(address, headers=ann).json()["surefoot"]["trace_id"]
    path = f"{address}/v1/traces/{trace_id}"
    assert httpx.get(path, headers=ann).status_code == 200
    assert httpx.get(path, headers=bob).status_code == 404
    said = {"trace_id": trace_id, "satisfied": True}
    assert httpx.post(f"{address}/v1/feedback", json=said, headers=bob).status_code == 404
    assert httpx.post(f"{address}/v1/feedback", json=said, headers=ann).status_code == 200


def test_profiles_change_with_the_admin_key_only(small: Small) -> None:
    address, _ = small(api_keys=("key-of-ann",), admin_key="key-of-admin")
    ann, admin = {"x-api-key": "key-of-ann"}, {"x-api-key": "key-of-admin"}
    for path in ("/v1/reload", "/v1/profiles/cool/rollback"):
        assert httpx.post(address + path, headers=ann).status_code == 403
    assert httpx.put(f"{address}/v1/switch", json={"on": False}, headers=ann).status_code == 403
    assert httpx.put(f"{address}/v1/switch", json={"on": False}, headers=admin).json() == {"on": False}


# ── profiles and the switch ──


def test_profiles_have_versions_and_roll_back_without_a_restart(small: Small) -> None:
    address, _ = small()
    path = f"{address}/v1/profiles/cool"
    profile = httpx.get(path).json()
    profile["high"]["action"]["temperature"] = 0.4
    assert httpx.put(path, json=profile).json() == {"name": "cool", "version": 2}

    def used() -> tuple[int, set[float]]:
        said = ask(address, surefoot={"profile": "cool", "trace": True}).json()["surefoot"]
        return said["profile"]["version"], {t["temperature"] for t in said["tokens"]}

    assert used() == (2, {0.4})
    assert httpx.post(f"{path}/rollback").json() == {"name": "cool", "version": 1}
    assert used() == (1, {0.2})
    assert httpx.put(path, json=profile).json() == {"name": "cool", "version": 3}  # no number twice
    assert httpx.post(f"{path}/rollback").json() == {"name": "cool", "version": 1}
    refused = httpx.post(f"{path}/rollback")
    assert refused.status_code == 400 and "no earlier version" in refused.text
    profile["high"]["threshold"] = "high"
    refused = httpx.put(path, json=profile)
    assert refused.status_code == 400 and "high.threshold" in refused.text
    profile = httpx.get(path).json() | {"probe": {"layers": [40]}}
    assert "reads attention layer 40" in httpx.put(path, json=profile).text
    assert used() == (1, {0.2})


def test_files_are_read_again_all_or_none(small: Small, tmp_path: Any) -> None:
    path = tmp_path / "mine.json"
    mine = {"name": "mine", "high": {"threshold": -1e9, "action": {"temperature": 0.2}}}
    path.write_text(json.dumps(mine))
    address, _ = small(domains={"legal": str(path)})
    legal = {"system": "SSP:domain=legal"}
    assert ask(address, **legal).json()["surefoot"]["profile"] == {"name": "mine", "version": 1}
    mine["high"]["action"]["temperature"] = 0.5
    path.write_text(json.dumps(mine))
    assert httpx.post(f"{address}/v1/reload").json() == {"changed": ["mine"]}
    assert httpx.post(f"{address}/v1/reload").json() == {"changed": []}
    assert ask(address, **legal).json()["surefoot"]["profile"] == {"name": "mine", "version": 2}
    path.write_text("{")
    refused = httpx.post(f"{address}/v1/reload")
    assert refused.status_code == 400 and "not valid JSON" in refused.text
    assert ask(address, **legal).json()["surefoot"]["profile"] == {"name": "mine", "version": 2}


@pytest.mark.parametrize("off", ["request", "switch", "start"])
def test_off_means_nothing_is_measured(small: Small, off: str) -> None:
    address, _ = small(steady=off != "start")
    if off == "switch":
        httpx.put(f"{address}/v1/switch", json={"on": False})
    surefoot = {"trace": True, "confidence": "low" if off == "request" else "high"}
    said = ask(address, surefoot=surefoot).json()["surefoot"]
    assert said["mode"] == "off" and said["profile"] is None
    assert {t["kurtosis"] for t in said["tokens"]} == {None}
    assert metric(address, "ssp_state_machine_active_ratio") != 1.0


def test_a_failing_probe_fails_open_and_says_so(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    address, _ = small()
    wanted: dict[str, Any] = {"temperature": 0.0, "surefoot": {"trace": True}}
    sound = ask(address, **wanted).json()
    add, calls = Look.add, []

    def failing(self: Look, *args: Any) -> None:
        calls.append(1)
        if len(calls) > 7:
            raise RuntimeError("the probe is broken")
        add(self, *args)

    monkeypatch.setattr(Look, "add", failing)
    broken = ask(address, **wanted).json()
    assert broken["content"] == sound["content"]
    assert broken["surefoot"]["mode"] == "failed open"
    assert broken["surefoot"]["failure"] == "RuntimeError: the probe is broken"
    assert [t["kurtosis"] is None for t in broken["surefoot"]["tokens"]][2:] == [True] * 6
    assert metric(address, "surefoot_failed_open_total") == 1.0
    assert metric(address, "ssp_state_machine_active_ratio") == 0.5


# ── sizes and the queue ──


def test_a_body_that_is_too_large_is_refused_however_it_is_sent(small: Small) -> None:
    address, server = small(max_body=2000)
    text = "x" * 3000
    refused = ask(address, system=text)
    assert refused.status_code == 413 and refused.json()["error"]["type"] == "request_too_large"
    chunks = (b"x" * 1000 for _ in range(100))
    assert httpx.post(f"{address}/v1/feedback", content=chunks).status_code == 413
    assert httpx.put(f"{address}/v1/profiles/x", content=b"x" * 3000).status_code == 413
    assert server.slots.running == 0


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"model": 1}',
        b"[" * 100_000,
        b'{"surefoot": {"\\ud800": 1}}',
        b'{"model": "any", "max_tokens": 1, "messages": [{"role": "user", "content": "\\ud800"}]}',
    ],
)
def test_bodies_that_are_no_request_get_400(small: Small, raw: bytes) -> None:
    address, _ = small()
    for path in ("/v1/messages", "/v1/chat/completions", "/v1/feedback", "/v1/messages/count_tokens"):
        refused = httpx.post(address + path, content=raw, headers={"content-type": "application/json"})
        assert refused.status_code == 400 and refused.json()["error"]["message"]


def test_a_trace_that_cannot_be_written_costs_no_answer(small: Small, tmp_path: Any) -> None:
    address, _ = small(traces=tmp_path / "traces")
    assert ask(address).status_code == 200
    shutil.rmtree(tmp_path / "traces")
    (tmp_path / "traces").write_text("in the way")
    assert ask(address).status_code == 200
    (tmp_path / "traces").unlink()
    assert ask(address).status_code == 200 and list((tmp_path / "traces").glob("*.jsonl"))


def test_a_full_queue_says_when_to_come_back(small: Small) -> None:
    address, server = small(slots=1, queue=1)

    async def flood() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=60) as client:
            body = {"model": "any", "messages": [{"role": "user", "content": "?"}], **LONG}
            paths = ["/v1/messages", "/v1/chat/completions"] * 4
            return await asyncio.gather(*(client.post(address + p, json=body) for p in paths))

    responses = asyncio.run(flood())
    codes = [r.status_code for r in responses]
    assert codes.count(200) >= 2 and set(codes) <= {200, 429, 529} and len(set(codes)) == 3
    for response in responses:
        if response.status_code != 200:
            assert int(response.headers["retry-after"]) >= 1
            assert (response.status_code == 429) == ("chat" in response.url.path)
    idle(server)
    assert ask(address).status_code == 200


# ── timeouts and clients that leave ──


@pytest.mark.parametrize("header", ["X-Claude-Timeout", "X-Surefoot-Timeout"])
def test_a_timeout_ends_the_answer_and_frees_the_slot(small: Small, header: str) -> None:
    address, server = small()
    begun = time.monotonic()
    answer = ask(address, headers={header: "150"}, max_tokens=200, surefoot={"confidence": "high"})
    assert time.monotonic() - begun < 2
    said = answer.json()
    assert said["surefoot"]["ended_by"] == "timeout" and said["stop_reason"] == "max_tokens"
    assert 0 < said["usage"]["output_tokens"] < 200
    idle(server)
    assert metric(address, 'surefoot_cancellations_total{cause="timeout"}') == 1.0


def test_a_timeout_in_the_queue_is_an_error_with_words(small: Small) -> None:
    address, server = small(slots=1)

    async def two() -> tuple[httpx.Response, httpx.Response]:
        async with httpx.AsyncClient(timeout=60) as client:
            body = {"model": "any", "messages": [{"role": "user", "content": "?"}], **LONG}
            first = asyncio.create_task(client.post(f"{address}/v1/messages", json=body))
            await asyncio.sleep(0.1)
            late = await client.post(f"{address}/v1/messages", json=body, headers={"X-Surefoot-Timeout": "20"})
            return await first, late

    first, late = asyncio.run(two())
    assert first.status_code == 200
    assert late.status_code == 408 and late.json()["error"]["type"] == "timeout_error"
    idle(server)


@pytest.mark.parametrize("value", ["0", "-5", "soon", "1.5", "", "٣"])
def test_a_timeout_that_is_no_number_is_refused(small: Small, value: str) -> None:
    address, _ = small()
    refused = ask(address, headers={b"x-surefoot-timeout": value.encode()})
    assert refused.status_code == 400 and "milliseconds" in refused.text


def test_the_server_s_maximum_holds_too(small: Small) -> None:
    address, _ = small(max_seconds=0.1)
    assert ask(address, max_tokens=200).json()["surefoot"]["ended_by"] == "timeout"


@pytest.mark.parametrize("streamed", [True, False])
def test_200_clients_that_leave_cost_no_slot(small: Small, streamed: bool) -> None:
    address, server = small(slots=2)
    clients = 200 if streamed else 40

    async def leave(client: httpx.AsyncClient, i: int) -> None:
        body = {"model": "any", "messages": [{"role": "user", "content": str(i)}], "max_tokens": 200}
        if streamed:
            async with client.stream("POST", f"{address}/v1/messages", json={**body, "stream": True}) as response:
                async for line in response.aiter_lines():
                    if "content_block_delta" in line or i % 3 == 0:
                        return
        else:
            with pytest.raises(httpx.ReadTimeout):
                await client.post(f"{address}/v1/messages", json=body, timeout=0.05)

    async def all_leave() -> None:
        limits = httpx.Limits(max_connections=20)
        async with httpx.AsyncClient(timeout=120, limits=limits) as client:
            for i in range(0, clients, 10):
                await asyncio.gather(*(leave(client, j) for j in range(i, i + 10)))

    asyncio.run(all_leave())
    idle(server)
    assert metric(address, 'surefoot_cancellations_total{cause="disconnect"}') >= clients * 0.9
    assert ask(address).status_code == 200


# ── many at once ──


def test_200_streams_at_once_are_neither_lost_nor_mixed(small: Small) -> None:
    address, server = small(slots=4)

    async def stream(client: httpx.AsyncClient, i: int) -> str:
        body = {
            "model": "any", "max_tokens": 12, "stream": True, "surefoot": {"seed": i % 10},
            "messages": [{"role": "user", "content": f"question {i % 10}"}],
        }  # fmt: skip
        text = ""
        async with client.stream("POST", f"{address}/v1/messages", json=body) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    event = json.loads(line[6:])
                    text += event.get("delta", {}).get("text", "")
        assert event["type"] == "message_stop"
        return text

    async def all_of_them(n: int) -> list[str]:
        limits = httpx.Limits(max_connections=n)
        async with httpx.AsyncClient(timeout=300, limits=limits) as client:
            return await asyncio.gather(*(stream(client, i) for i in range(n)))

    alone = [asyncio.run(all_of_them(1))[0], *asyncio.run(all_of_them(10))[1:]]
    texts = asyncio.run(all_of_them(200))
    assert len(set(alone)) == 10
    assert texts == alone * 20
    idle(server)
