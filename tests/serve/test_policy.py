"""What an instruction means: profile, tolerance, mode, arm."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from client import ask

from surefoot.control import Action, FuseRule, LowRule, Profile, load_profile
from surefoot.errors import ProfileError
from surefoot.serve.ab import CONTROL, arm_of
from surefoot.serve.policy import make_plan, with_tolerance
from surefoot.serve.profiles import ProfileStore
from surefoot.ssp import Directive, parse

CAREFUL = load_profile("careful")


@pytest.fixture
def store() -> ProfileStore:
    return ProfileStore("careful", {"creative": "creative"}, ("article",), lambda profile: [])


def plan(store: ProfileStore, text: str = "domain=general", **more: Any) -> Any:
    directive = Directive(parse(text), profile=more.pop("profile", None))
    return make_plan(directive, store, **({"steady": True, "shares": {}, "key": "k"} | more))


def test_the_domain_chooses_the_profile_and_a_name_wins(store: ProfileStore) -> None:
    assert plan(store, "domain=legal").profile == CAREFUL
    assert plan(store, "domain=creative").profile.name == "creative"
    assert plan(store, "domain=creative", profile="article").profile.name == "article"
    with pytest.raises(ProfileError, match="nobody"):
        plan(store, profile="nobody")


@pytest.mark.parametrize(
    ("text", "mode", "fuse"),
    [
        ("confidence=high;fallback=conservative", "steadied", True),
        ("confidence=high", "steadied", False),
        ("confidence=medium;fallback=transparent", "measured", True),
        ("confidence=low;fallback=conservative", "off", False),
    ],
)
def test_confidence_and_fallback(store: ProfileStore, text: str, mode: str, fuse: bool) -> None:
    made = plan(store, text)
    assert (made.mode, made.fuse) == (mode, fuse)
    assert plan(store, text, steady=False).mode == "off"


def test_tolerance_moves_the_limit_along_the_profile_s_own_quantiles() -> None:
    assert CAREFUL.low is not None and CAREFUL.provenance is not None
    limits = [with_tolerance(CAREFUL, t).low.threshold for t in ("lenient", "balanced", "strict")]
    quantiles = CAREFUL.provenance.score_quantiles
    assert limits == [quantiles["0.2"], CAREFUL.low.threshold, quantiles["0.8"]] == sorted(limits)


def test_strict_heats_nothing_and_lenient_ends_nothing() -> None:
    creative = load_profile("creative")
    assert creative.low is not None
    assert with_tolerance(creative, "strict").low is None
    assert with_tolerance(creative, "lenient").low == creative.low
    fused = Profile(name="f", fuse=FuseRule(window=5, std_below=0.03), low=LowRule(threshold=1.0, action=Action()))
    assert with_tolerance(fused, "lenient").fuse is None
    assert with_tolerance(fused, "strict").fuse == fused.fuse


def test_an_arm_is_stable_and_has_its_share(store: ProfileStore) -> None:
    shares = {"article": 0.1, "creative": 0.3}
    arms = [arm_of(f"user {i}", shares) for i in range(20_000)]
    assert arms == [arm_of(f"user {i}", shares) for i in range(20_000)]
    counts = Counter(arms)
    assert counts["article"] / 20_000 == pytest.approx(0.1, abs=0.01)
    assert counts["creative"] / 20_000 == pytest.approx(0.3, abs=0.012)
    assert counts[CONTROL] / 20_000 == pytest.approx(0.6, abs=0.012)
    in_arm = next(f"user {i}" for i, arm in enumerate(arms) if arm == "article")
    made = plan(store, "domain=legal", shares={"article": 0.1}, key=in_arm)
    assert made.arm == "article" and made.profile.name == "article"
    assert plan(store, "domain=legal", shares={"article": 0.1}, key=in_arm, profile="careful").arm == CONTROL


def test_an_arm_without_an_id_is_that_of_the_conversation(small: Any) -> None:
    address, _ = small(ab={"article": 0.5})

    def arms(text: str, **body: Any) -> set[str]:
        messages = [{"role": "user", "content": text}]
        more = [{"role": "assistant", "content": "A"}, {"role": "user", "content": "again"}]
        asked = (messages, messages, messages + more)
        return {ask(address, messages=m, **body).json()["surefoot"]["arm"] for m in asked}

    found = [arms(f"question {i}") for i in range(12)]
    assert all(len(x) == 1 for x in found) and len(set.union(*found)) == 2
    named = {a for i in range(4) for a in arms(f"question {i}", metadata={"user_id": "ann"})}
    assert len(named) == 1


def test_growing_a_share_moves_nobody_out_of_the_arm() -> None:
    users = [f"user {i}" for i in range(5000)]
    small = {u for u in users if arm_of(u, {"article": 0.1}) == "article"}
    large = {u for u in users if arm_of(u, {"article": 0.3}) == "article"}
    assert small < large
