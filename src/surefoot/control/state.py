"""The states of a request, in the order of their precedence."""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """State of one token (S1). A larger value wins over a smaller one; see docs/structures.md."""

    NEUTRAL = 0
    LOW = 1
    HIGH = 2
    SHOCK = 3
    FUSE = 4
