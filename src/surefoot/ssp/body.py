"""Where an instruction stands in a body: on the first line of the system text, or in the field ``surefoot``."""

from __future__ import annotations

from typing import Any

from surefoot.ssp.grammar import Directive, Instruction, SSPError, read_directive, split_text

_SYSTEM_ROLES = ("system", "developer")


def take_from_body(body: dict[str, Any]) -> Directive:
    """Take the instruction out of a Messages or Chat Completions body, so that the model does not see it.

    Parameters
    ----------
    body : dict
        Decoded JSON, changed in place. What has another form than the APIs' is left for their own validation.

    Raises
    ------
    SSPError
        The instruction is not in the grammar, or there are two.
    """
    directive = read_directive(body.pop("surefoot")) if body.get("surefoot") is not None else None
    body.pop("surefoot", None)
    found = _from_system(body)
    if found is not None:
        if directive is not None and directive.instruction != Instruction():
            raise SSPError("there is an SSP instruction in the system text and another in 'surefoot'; give one.")
        base = directive or Directive()
        directive = Directive(found, base.trace, base.profile, base.seed)
    return directive or Directive()


def _from_system(body: dict[str, Any]) -> Instruction | None:
    if body.get("system") is not None:
        found, rest = _split(body["system"])
        if found is not None:
            body["system"] = rest
            if not rest:
                del body["system"]
        return found
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[0], dict):
        return None
    if messages[0].get("role") not in _SYSTEM_ROLES:
        return None
    found, rest = _split(messages[0].get("content"))
    if found is not None:
        if rest:
            messages[0]["content"] = rest
        else:
            del messages[0]
    return found


def _split(system: Any) -> tuple[Instruction | None, Any]:
    """The instruction in a system text or in the first of its blocks, and what remains."""
    if isinstance(system, str):
        return split_text(system)
    if isinstance(system, list) and system and isinstance(system[0], dict) and isinstance(system[0].get("text"), str):
        found, rest = split_text(system[0]["text"])
        if found is not None:
            return found, [{**system[0], "text": rest}, *system[1:]] if rest else system[1:]
    return None, system
