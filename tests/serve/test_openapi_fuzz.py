"""Whatever the OpenAPI document allows, and much it does not: never a 5xx, always an error in words."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from client import serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from surefoot.serve.settings import Settings
from surefoot.serve.start import make_server

# 15 operations, valid and invalid: over 2,000 cases.
CASES = 125
OPERATIONS = 15


@pytest.fixture(scope="module")
def address(make_model: Any, byte_tokenizer: Any) -> Iterator[str]:
    # Short answers: what is fuzzed is the request.
    model = make_model("llama", vocab_size=len(byte_tokenizer))
    with serving(make_server(Settings(model="tiny", max_tokens=2), model, byte_tokenizer)) as address:
        yield address


@pytest.fixture(scope="module")
def fuzzed(address: str) -> Any:
    config = schemathesis.Config.from_dict({"generation": {"mode": "all"}})
    return schemathesis.openapi.from_url(f"{address}/openapi.json", config=config)


def test_no_case_of_over_2000_is_a_server_error(fuzzed: Any) -> None:
    counted: Counter[str] = Counter()
    for found in fuzzed.get_all_operations():
        operation = found.ok()
        for mode in GenerationMode:

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
            def check(case: schemathesis.Case) -> None:
                counted[case.operation.label] += 1
                response = case.call()
                assert response.status_code < 500, (case.as_curl_command(), response.text)
                if response.status_code >= 400:
                    assert response.json()["error"]["message"]

            # What takes no input at all has no invalid cases.
            with contextlib.suppress(Unsatisfiable) if mode is GenerationMode.NEGATIVE else contextlib.nullcontext():
                check()
    assert len(counted) == OPERATIONS and counted.total() >= 2000, counted


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    "model", "messages", "system", "max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "stop", "stream",
    "metadata", "user", "logprobs", "top_logprobs", "surefoot", "tools", "seed", "n", "stream_options",
)  # fmt: skip
SOUND = {"model": "any", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/messages/count_tokens"])
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(changes=st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=3))
def test_a_sound_body_with_odd_fields_is_answered_or_refused(address: str, path: str, changes: dict[str, Any]) -> None:
    response = httpx.post(address + path, json=SOUND | changes)
    assert response.status_code < 500, (changes, response.text)
