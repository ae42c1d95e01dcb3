"""From an instruction to what the engine is told: the meaning of SSP."""

from __future__ import annotations

from dataclasses import dataclass, field

from surefoot.control import Profile
from surefoot.serve.ab import CONTROL, arm_of
from surefoot.serve.profiles import ProfileStore
from surefoot.ssp.grammar import Directive, Tolerance

# Tolerance moves the LOW limit of a calibrated profile along the quantiles of its own score.
STRICT_QUANTILE, LENIENT_QUANTILE = "0.8", "0.2"


@dataclass(frozen=True, slots=True)
class Plan:
    """How one request is decoded.

    Attributes
    ----------
    directive : Directive
    profile : Profile or None
        None: off, nothing is measured.
    acting : bool
        False only measures.
    fuse : bool
        Whether a blown fuse ends the answer.
    arm : str
        A/B arm; `CONTROL` outside one.
    """

    directive: Directive
    profile: Profile | None
    acting: bool
    fuse: bool
    arm: str = field(default=CONTROL)

    @property
    def mode(self) -> str:
        """steadied, measured or off."""
        return "off" if self.profile is None else "steadied" if self.acting else "measured"


def make_plan(directive: Directive, store: ProfileStore, *, steady: bool, shares: dict[str, float], key: str) -> Plan:
    """The plan of a request.

    Parameters
    ----------
    directive : Directive
    store : ProfileStore
    steady : bool
        The server's switch; off wins over whatever the request asks.
    shares : dict
        A/B arms. A request that names a profile itself is in none.
    key : str
        User or conversation id, which decides the arm.

    Raises
    ------
    ProfileError
        The directive names a profile that is not loaded.
    """
    wanted = directive.instruction
    name = directive.profile or store.domains[wanted.domain]
    profile, arm = store.get(name), CONTROL
    if not steady or wanted.confidence == "low":
        return Plan(directive, None, acting=False, fuse=False)
    if directive.profile is None and shares:
        arm = arm_of(key, shares)
        profile = profile if arm == CONTROL else store.get(store.arms[arm])
    profile = with_tolerance(profile, wanted.tolerance)
    return Plan(directive, profile, wanted.confidence == "high", wanted.fallback != "none", arm)


def with_tolerance(profile: Profile, tolerance: Tolerance) -> Profile:
    """A profile as strict or lenient as asked for (S7).

    strict, facts first: a LOW state that cools begins at the 80 % quantile of the profile's own score, and one that
    heats is off. lenient, length first: a LOW state that cools begins at the 20 % quantile, and no fuse ends the
    answer. A profile without calibration has no quantiles; its LOW limit stays. balanced: as it is.
    """
    if tolerance == "balanced":
        return profile
    changes: dict[str, object] = {}
    low = profile.low
    quantiles = profile.provenance.score_quantiles if profile.provenance else {}
    cools = low is not None and low.action.approach == "lower"
    if low is not None and cools:
        limit = quantiles.get(STRICT_QUANTILE if tolerance == "strict" else LENIENT_QUANTILE)
        if limit is not None and (profile.high is None or limit < profile.high.threshold):
            changes["low"] = low.model_copy(update={"threshold": limit})
    elif low is not None and tolerance == "strict":
        changes["low"] = None
    if tolerance == "lenient":
        changes["fuse"] = None
    return profile.model_copy(update=changes)
