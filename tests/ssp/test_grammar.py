"""SSP: the grammar, where it stands in a body, the decorator."""

from __future__ import annotations

import contextlib
import copy
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.ssp import Instruction, SSPError, parse, read_directive, split_text, take_from_body
from surefoot.ssp.grammar import ALLOWED, PREFIX

ARTICLE = "SSP:domain=legal;confidence=high;tolerance=strict;fallback=conservative"
instructions = st.builds(Instruction, **{key: st.sampled_from(values) for key, values in ALLOWED.items()})


def test_the_article_s_line_is_read() -> None:
    assert parse(ARTICLE) == Instruction("legal", "high", "strict", "conservative")


@given(instructions)
def test_an_instruction_survives_its_own_text(instruction: Instruction) -> None:
    assert parse(str(instruction)) == instruction
    assert split_text(f"{instruction}\nBe brief.") == (instruction, "Be brief.")
    assert read_directive(str(instruction)).instruction == instruction


def test_what_is_left_out_has_defaults_and_spaces_do_not_matter() -> None:
    assert parse("SSP: domain = medical ;") == Instruction(domain="medical")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("SSP:domain=law", "legal|medical"),
        ("SSP:mood=good", "confidence=high"),
        ("SSP:domain", "not key=value"),
        ("SSP:domain=legal;domain=tech", "twice"),
        ("SSP:", "empty"),
        ("SSP:" + "x" * 600, "at most 500"),
    ],
)
def test_what_is_not_in_the_grammar_is_refused_with_what_is(text: str, named: str) -> None:
    with pytest.raises(SSPError) as refused:
        parse(text)
    assert named in str(refused.value)
    assert all(value in refused.value.hint for value in get_args(Instruction.__annotations__["domain"]) or ("legal",))


@pytest.mark.parametrize(
    "text", ["ssp:domain=legal", "SSP：domain=legal", " SSP:domain=legal", "\nSSP:domain=legal", "\ufeffSSP:a=b"]
)
def test_a_near_miss_of_the_prefix_is_no_silent_miss(text: str) -> None:
    with pytest.raises(SSPError, match="not exactly 'SSP:'"):
        split_text(text)


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(SSPError):  # and with no other error
        assert isinstance(parse(text), Instruction)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ({"system": f"{ARTICLE}\nBe brief."}, {"system": "Be brief."}),
        ({"system": ARTICLE}, {}),
        ({"system": [{"type": "text", "text": ARTICLE}]}, {}),
        (
            {"system": [{"type": "text", "text": f"{ARTICLE}\nA", "cache_control": {}}, {"type": "text", "text": "B"}]},
            {"system": [{"type": "text", "text": "A", "cache_control": {}}, {"type": "text", "text": "B"}]},
        ),
        (
            {"messages": [{"role": "system", "content": f"{ARTICLE}\nBe brief."}, {"role": "user", "content": "x"}]},
            {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}]},
        ),
        (
            {"messages": [{"role": "developer", "content": ARTICLE}, {"role": "user", "content": "x"}]},
            {"messages": [{"role": "user", "content": "x"}]},
        ),
        ({"surefoot": ARTICLE, "system": "Be brief."}, {"system": "Be brief."}),
        (
            {"surefoot": {"domain": "legal", "confidence": "high", "tolerance": "strict", "fallback": "conservative"}},
            {},
        ),
    ],
)
def test_the_instruction_is_taken_out_of_the_body(body: dict[str, Any], left: dict[str, Any]) -> None:
    assert take_from_body(body).instruction == parse(ARTICLE)
    assert body == left


def test_only_the_first_line_of_the_system_text_counts() -> None:
    body = {"system": f"Be brief.\n{ARTICLE}", "messages": [{"role": "user", "content": ARTICLE}]}
    before = copy.deepcopy(body)
    assert take_from_body(body).instruction == Instruction()
    assert body == before


def test_two_instructions_are_refused_but_a_trace_may_be_asked_beside_one() -> None:
    with pytest.raises(SSPError, match="give one"):
        take_from_body({"system": ARTICLE, "surefoot": "domain=tech"})
    directive = take_from_body({"system": ARTICLE, "surefoot": {"trace": True, "seed": 3}})
    assert directive.instruction == parse(ARTICLE) and directive.trace and directive.seed == 3


@pytest.mark.parametrize(
    "value", [7, [], {"trace": "yes"}, {"seed": True}, {"seed": 1.5}, {"mood": "good"}, {"domain": 3}]
)
def test_a_field_of_another_kind_is_refused(value: Any) -> None:
    with pytest.raises(SSPError):
        take_from_body({"surefoot": value})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional={"system": json_values, "messages": json_values, "surefoot": json_values}))
def test_bodies_of_any_form_are_read_or_refused(body: dict[str, Any]) -> None:
    try:
        take_from_body(body)
    except SSPError:
        return
    assert "surefoot" not in body


def test_the_prefix_is_what_the_documents_say() -> None:
    assert PREFIX == "SSP:"
