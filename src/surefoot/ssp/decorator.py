"""``with_ssp``: give the calls of a function an SSP instruction."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from surefoot.ssp.grammar import PREFIX, parse

Function = TypeVar("Function", bound=Callable[..., Any])


def with_ssp(
    domain: str = "general", confidence: str = "high", tolerance: str = "balanced", fallback: str = "none"
) -> Callable[[Function], Function]:
    """Put an instruction before the system text of every call.

    Parameters
    ----------
    domain, confidence, tolerance, fallback : str
        See `Instruction`.

    Returns
    -------
    callable
        A decorator for an SDK's own method (``client.messages.create``, ``client.messages.stream``,
        ``client.chat.completions.create``), or for a function of yours that takes ``system`` or ``**kwargs`` and hands
        them on, or takes ``messages``. Plain, async and generator functions stay what they are. A system text of the
        caller's is kept behind the instruction; an instruction of the caller's wins.

    Raises
    ------
    SSPError
        A value that the grammar does not have.
    TypeError
        The function has no place for a system text.

    Examples
    --------
    >>> @with_ssp(domain="legal", confidence="high")  # doctest: +SKIP
    ... def ask(question, **kwargs):
    ...     return client.messages.create(
    ...         model="any", max_tokens=200, messages=[{"role": "user", "content": question}], **kwargs
    ...     )
    """
    line = str(parse(f"domain={domain};confidence={confidence};tolerance={tolerance};fallback={fallback}"))

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        place = _place(function, signature)

        def prepared(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            bound = signature.bind_partial(*args, **kwargs)
            known = bound.arguments if place in signature.parameters else bound.kwargs
            merged = (_in_system if place == "system" else _in_messages)(known.get(place), line)
            if place in bound.arguments:
                bound.arguments[place] = merged
                return bound.args, bound.kwargs
            return args, kwargs | {place: merged}

        wrapper: Any
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                args, kwargs = prepared(args, kwargs)
                return await function(*args, **kwargs)

        elif inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                args, kwargs = prepared(args, kwargs)
                async for item in function(*args, **kwargs):
                    yield item

        elif inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                args, kwargs = prepared(args, kwargs)
                return (yield from function(*args, **kwargs))

        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                args, kwargs = prepared(args, kwargs)
                return function(*args, **kwargs)

        return wrapper  # type: ignore[no-any-return]

    return decorate


def _place(function: Callable[..., Any], signature: inspect.Signature) -> str:
    parameters = signature.parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if "system" in parameters or (open_ended and "messages" not in parameters):
        return "system"
    if "messages" in parameters:
        return "messages"
    name = getattr(function, "__qualname__", repr(function))
    raise TypeError(
        f"with_ssp: {name} takes neither 'system' nor 'messages' nor **kwargs, so SSP cannot reach the call"
    )


def _in_system(system: Any, line: str) -> Any:
    if isinstance(system, str):
        return system if system.startswith(PREFIX) else f"{line}\n{system}"
    if isinstance(system, (list, tuple)) and system:
        first = system[0].get("text", "") if isinstance(system[0], dict) else ""
        return system if str(first).startswith(PREFIX) else [{"type": "text", "text": line}, *system]
    return line  # nothing, or an SDK's mark for "not given"


def _in_messages(messages: Any, line: str) -> Any:
    messages = list(messages or [])
    if messages and isinstance(messages[0], dict) and messages[0].get("role") in ("system", "developer"):
        return [{**messages[0], "content": _in_system(messages[0].get("content"), line)}, *messages[1:]]
    return [{"role": "system", "content": line}, *messages]
