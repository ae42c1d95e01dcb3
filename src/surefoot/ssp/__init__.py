"""SSP, the semantic stability prompt (S7): how a request says what footing it wants."""

from surefoot.ssp.body import take_from_body
from surefoot.ssp.decorator import with_ssp
from surefoot.ssp.grammar import PREFIX, Directive, Instruction, SSPError, parse, read_directive, split_text

__all__ = [
    "PREFIX",
    "Directive",
    "Instruction",
    "SSPError",
    "parse",
    "read_directive",
    "split_text",
    "take_from_body",
    "with_ssp",
]
