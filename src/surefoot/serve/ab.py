"""A/B (S12): which arm a request belongs to."""

from __future__ import annotations

import hashlib

CONTROL = "control"


def arm_of(key: str, shares: dict[str, float]) -> str:
    """The arm for a user or conversation id.

    Parameters
    ----------
    key : str
        The same key always gets the same arm, on every server and after every restart.
    shares : dict
        Share of the traffic for each arm; the rest is `CONTROL`.
    """
    at = int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:8], "big") / 2**64
    for name, share in sorted(shares.items()):
        if at < share:
            return name
        at -= share
    return CONTROL
