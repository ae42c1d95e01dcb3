"""The one grammar of SSP: ``SSP:domain=legal;confidence=high;tolerance=strict;fallback=conservative``.

A body may say the same in its field ``surefoot``, as that text or as an object; the object can also ask for what is no
part of S7: the trace of every token, a profile by name, a seed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from surefoot.errors import InputError

PREFIX = "SSP:"
MAX_LENGTH = 500
# What a hasty hand or an input method makes of the prefix. Passed on in silence it would steady nothing.
_ALMOST = re.compile(r"[\s\ufeff\u200b]*(ssp|ｓｓｐ)\s*[:：]", re.IGNORECASE)

Domain = Literal["general", "legal", "medical", "finance", "tech", "creative"]
Confidence = Literal["high", "medium", "low"]
Tolerance = Literal["strict", "balanced", "lenient"]
Fallback = Literal["none", "transparent", "conservative"]


class SSPError(InputError):
    """An instruction that is not in the grammar; the message names what is allowed."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """What a request wants.

    Attributes
    ----------
    domain : str
        Chooses the profile.
    confidence : str
        high: the whole state machine; medium: measure only; low: off.
    tolerance : str
        strict: facts first; lenient: length first.
    fallback : str
        When the footing is bad: conservative, the safe response; transparent, say what is uncertain; none.
    """

    domain: Domain = "general"
    confidence: Confidence = "high"
    tolerance: Tolerance = "balanced"
    fallback: Fallback = "none"

    def __str__(self) -> str:
        return PREFIX + ";".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self))


@dataclass(frozen=True, slots=True)
class Directive:
    """An instruction and what else the field ``surefoot`` of a body can ask for."""

    instruction: Instruction = Instruction()
    trace: bool = False
    profile: str | None = None
    seed: int | None = None


ALLOWED: dict[str, tuple[str, ...]] = {
    "domain": get_args(Domain),
    "confidence": get_args(Confidence),
    "tolerance": get_args(Tolerance),
    "fallback": get_args(Fallback),
}
_HINT = "Allowed: " + "; ".join(f"{key}={'|'.join(values)}" for key, values in ALLOWED.items()) + "."


def parse(text: str) -> Instruction:
    """An instruction from its text, with or without the prefix.

    Raises
    ------
    SSPError
        An unknown key or value, a key given twice, or no key at all.
    """
    if len(text) > MAX_LENGTH:
        raise SSPError(f"an SSP instruction has at most {MAX_LENGTH} characters, this one has {len(text)}.", _HINT)
    pairs: dict[str, str] = {}
    for part in text.strip().removeprefix(PREFIX).split(";"):
        if not part.strip():
            continue  # a semicolon at the end
        key, equals, value = (x.strip() for x in part.partition("="))
        if not equals:
            raise SSPError(f"SSP: '{_short(part)}' is not key=value.", _HINT)
        if key in pairs:
            raise SSPError(f"SSP: '{_short(key)}' is given twice.", _HINT)
        pairs[key] = value
    if not pairs:
        raise SSPError("SSP: the instruction is empty.", _HINT)
    return _instruction(pairs)


def split_text(text: str) -> tuple[Instruction | None, str]:
    """The instruction on the first line of ``text`` (None without one), and what is left for the model."""
    line, _, rest = text.partition("\n")
    if line.startswith(PREFIX):
        return parse(line), rest.removeprefix("\r")
    if _ALMOST.match(text):
        raise SSPError(f"the system text begins with {text[:6]!r}, not exactly '{PREFIX}'.", _HINT)
    return None, text


def read_directive(value: Any) -> Directive:
    """A directive from a body's field ``surefoot``: text in the grammar, or an object."""
    if isinstance(value, str):
        return Directive(parse(value))
    if not isinstance(value, dict):
        raise SSPError("surefoot must be text or an object.", _HINT)
    extra = {"trace": bool, "profile": str, "seed": int}
    for key, kind in extra.items():
        # bool is an int to Python, not to whoever wrote "seed": true.
        wrong = not isinstance(value.get(key), kind) or (kind is int and isinstance(value[key], bool))
        if value.get(key) is not None and wrong:
            raise SSPError(f"surefoot.{key} must be {'true or false' if kind is bool else kind.__name__}.")
    pairs = {k: v for k, v in value.items() if k not in extra}
    return Directive(
        _instruction(pairs), trace=bool(value.get("trace")), profile=value.get("profile"), seed=value.get("seed")
    )


def _instruction(pairs: dict[str, Any]) -> Instruction:
    for key, value in pairs.items():
        if key not in ALLOWED:
            raise SSPError(f"SSP: unknown key '{_short(key)}'.", _HINT)
        if value not in ALLOWED[key]:
            raise SSPError(f"SSP: {key} cannot be '{_short(value)}'.", _HINT)
    return Instruction(**pairs)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."
