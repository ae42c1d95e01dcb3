"""`TextStream`: tokens in, text that can be shown out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.engines.text import TextStream

TEXTS = [
    "Hello, world!", "你好,世界。今天天气很好。", "👩‍👩‍👧‍👦 family 🎉🎉",
    "naïve café — déjà vu", " leading and  double", "a\n\n\tb\r\n",
]  # fmt: skip
CJK = st.characters(codec="utf-8", exclude_categories=("Cs",), exclude_characters="\ufffd")


def push_all(stream: TextStream, tokens: list[int]) -> str:
    text = ""
    for token in tokens:
        text += stream.push(token)
        if stream.stopped_by:
            return text
    return text + stream.flush()


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_out_as_it_went_in(smollm: Any, text: str) -> None:
    tokens = smollm[1](text, add_special_tokens=False)["input_ids"]
    assert push_all(TextStream(smollm[1]), tokens) == text


@settings(max_examples=60, deadline=None)
@given(text=st.text(CJK, max_size=12))
def test_any_text_comes_out_of_byte_tokens(byte_tokenizer: Any, text: str) -> None:
    tokens = byte_tokenizer(text, add_special_tokens=False)["input_ids"]
    assert push_all(TextStream(byte_tokenizer), tokens) == byte_tokenizer.decode(tokens)


@settings(max_examples=100, deadline=None)
@given(tokens=st.lists(st.integers(0, 49151), max_size=15))
def test_any_tokens_give_the_text_of_decoding_them_together(smollm: Any, tokens: list[int]) -> None:
    wanted = smollm[1].decode(tokens, skip_special_tokens=True)
    # A character that never becomes complete is not shown.
    assert push_all(TextStream(smollm[1]), tokens).rstrip("\ufffd") == wanted.rstrip("\ufffd")


def test_half_a_character_is_not_shown(byte_tokenizer: Any) -> None:
    stream = TextStream(byte_tokenizer)
    shown = [stream.push(t) for t in byte_tokenizer("你", add_special_tokens=False)["input_ids"]]
    assert shown == ["", "", "你"]


def test_special_tokens_are_not_shown(smollm: Any) -> None:
    tokens = smollm[1]("<|im_start|>Hi<|im_end|>", add_special_tokens=False)["input_ids"]
    assert push_all(TextStream(smollm[1]), tokens) == "Hi"


@pytest.mark.parametrize(
    ("text", "stop", "wanted"),
    [
        ("one two three", ("two",), "one "),
        ("one two three", ("e tw",), "on"),
        ("one two three", ("three", "two"), "one "),
        ("你好世界", ("世",), "你好"),
        ("aaab", ("aab",), "a"),
        ("stop", ("stop",), ""),
    ],
)
def test_text_ends_before_a_stop_string(byte_tokenizer: Any, text: str, stop: tuple[str, ...], wanted: str) -> None:
    stream = TextStream(byte_tokenizer, stop)
    assert push_all(stream, byte_tokenizer(text, add_special_tokens=False)["input_ids"]) == wanted
    assert stream.stopped_by


def test_what_may_begin_a_stop_string_is_held_back_until_it_does_not(byte_tokenizer: Any) -> None:
    stream = TextStream(byte_tokenizer, ("END",))
    tokens = byte_tokenizer("aENx", add_special_tokens=False)["input_ids"]
    assert [stream.push(t) for t in tokens] == ["a", "", "", "ENx"]


def test_a_partial_stop_string_at_the_end_is_flushed(byte_tokenizer: Any) -> None:
    stream = TextStream(byte_tokenizer, ("END",))
    assert push_all(stream, byte_tokenizer("the EN", add_special_tokens=False)["input_ids"]) == "the EN"
    assert not stream.stopped_by


@settings(max_examples=60, deadline=None)
@given(text=st.text("ab", max_size=20), stop=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_stopping_equals_cutting_the_whole_text(byte_tokenizer: Any, text: str, stop: list[str]) -> None:
    tokens = byte_tokenizer(text, add_special_tokens=False)["input_ids"]
    shown = push_all(TextStream(byte_tokenizer, tuple(stop)), tokens)
    # The stop string that is complete first ends the text.
    ends = [(text.find(s) + len(s), text.find(s)) for s in stop if s in text]
    first = min((end for end, _ in ends), default=None)
    assert shown == (text if first is None else text[: min(at for end, at in ends if end == first)])
