"""``with_ssp``, around functions of every kind."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from surefoot.ssp import SSPError, with_ssp

LINE = "SSP:domain=legal;confidence=high;tolerance=balanced;fallback=none"
legal = with_ssp(domain="legal", confidence="high")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, LINE),
        ({"system": "Be brief."}, f"{LINE}\nBe brief."),
        ({"system": [{"type": "text", "text": "A"}]}, [{"type": "text", "text": LINE}, {"type": "text", "text": "A"}]),
        ({"system": "SSP:domain=tech\nBe brief."}, "SSP:domain=tech\nBe brief."),
        ({"system": [{"type": "text", "text": "SSP:domain=tech"}]}, [{"type": "text", "text": "SSP:domain=tech"}]),
    ],
)
def test_the_system_text_is_merged_never_overwritten(given: dict[str, Any], wanted: Any) -> None:
    @legal
    def by_keywords(question: str, **kwargs: Any) -> Any:
        return kwargs["system"]

    @legal
    def by_name(question: str, system: Any = None) -> Any:
        return system

    assert by_keywords("?", **given) == wanted
    assert by_name("?", **given) == wanted
    assert by_name("?", *given.values()) == wanted


def test_kinds_of_functions_stay_what_they_are() -> None:
    @legal
    async def later(**kwargs: Any) -> Any:
        """Say it later."""
        return kwargs["system"]

    @legal
    def several(**kwargs: Any) -> Iterator[Any]:
        yield kwargs["system"]

    @legal
    async def several_later(**kwargs: Any) -> AsyncIterator[Any]:
        yield kwargs["system"]

    async def all_of_it() -> list[Any]:
        return [x async for x in several_later()]

    assert inspect.iscoroutinefunction(later) and later.__doc__ == "Say it later."
    assert asyncio.run(later()) == LINE
    assert inspect.isgeneratorfunction(several) and list(several()) == [LINE]
    assert inspect.isasyncgenfunction(several_later) and asyncio.run(all_of_it()) == [LINE]


def test_messages_get_it_where_there_is_no_system_parameter() -> None:
    @legal
    def create(*, messages: Any, model: str = "any") -> Any:
        return messages

    user = {"role": "user", "content": "?"}
    assert create(messages=[user]) == [{"role": "system", "content": LINE}, user]
    system = {"role": "system", "content": "Be brief."}
    assert create(messages=[system, user]) == [{"role": "system", "content": f"{LINE}\nBe brief."}, user]


def test_a_function_without_a_place_and_a_wrong_value_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match="neither 'system' nor 'messages'"):
        legal(lambda question: question)
    with pytest.raises(SSPError, match="law"):
        with_ssp(domain="law")
