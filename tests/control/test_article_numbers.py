"""The source article's numbers (S1, S6), literally, with the profile `article`."""

import math

import numpy as np
import pytest
from controller_reference import Request, make_signals

from surefoot.control import State, load_profile
from surefoot.control.overrides import JERK
from surefoot.control.rules import Action
from surefoot.control.trace import reason

ARTICLE = load_profile("article")
# Evenly spaced scores have no third difference, so these do not shock.
FALLING = (4.3, 4.19, 4.08, 3.97, 3.86)


def states(steps):
    return [s.state.name for s in steps]


def request(**settings):
    return Request(ARTICLE, **settings)


def test_kurtosis_above_4_2_steadies_exactly_three_tokens():
    steps = request(temperature=1.0, top_p=0.9).run(*FALLING, std=0.07)
    assert states(steps) == ["HIGH", "HIGH", "HIGH", "NEUTRAL", "NEUTRAL"]
    assert [s.temperature for s in steps] == pytest.approx([0.3] * 3 + [1.0] * 2)
    assert [s.top_p for s in steps] == pytest.approx([1.0] * 3 + [0.9] * 2)


def test_the_third_token_of_high_can_renew_it():
    assert states(request().run(4.3, 4.3, 4.3, 4.2, 4.1)) == ["HIGH"] * 5


@pytest.mark.parametrize(("std", "state"), [(0.07, "HIGH"), (0.079, "HIGH"), (0.08, "NEUTRAL"), (0.09, "NEUTRAL")])
def test_high_needs_a_spread_below_0_08(std, state):
    assert states(request().run(4.3, std=std)) == [state]


@pytest.mark.parametrize(
    ("kurtosis", "state"), [(4.21, "HIGH"), (4.2, "NEUTRAL"), (3.0, "NEUTRAL"), (2.1, "NEUTRAL"), (2.09, "LOW")]
)
def test_between_2_1_and_4_2_the_request_decides(kurtosis, state):
    assert states(request().run(kurtosis)) == [state]


def test_low_lies_between_the_request_and_0_85():
    low = request(temperature=0.7, top_p=0.9).step(2.0)
    assert low.state is State.LOW
    assert low.temperature == pytest.approx(0.7 + 0.15 * 0.1 / 1.1, abs=1e-5)
    assert low.top_p == pytest.approx(0.9)


def test_kurtosis_of_1_warms_to_0_85():
    assert request(temperature=0.7).step(1.0).temperature == pytest.approx(0.85)


def test_low_lasts_one_token():
    assert states(request().run(2.0, 2.2)) == ["LOW", "NEUTRAL"]


def test_low_does_not_cool_a_warmer_request():
    low = request(temperature=1.0).step(1.0)
    assert low.state is State.LOW
    assert low.temperature == 1.0
    assert low.sequence == 0


@pytest.mark.parametrize(("last", "state"), [(3.16, "SHOCK"), (3.14, "NEUTRAL"), (2.84, "SHOCK"), (2.86, "NEUTRAL")])
def test_jerk_beyond_0_15_is_a_shock(last, state):
    assert states(request().run(3.0, 3.0, 3.0, last)) == ["NEUTRAL"] * 3 + [state]


def test_a_shock_goes_to_0_5_without_top_p():
    shock = request(temperature=0.7, top_p=0.9).run(3.0, 3.0, 3.0, 3.16)[-1]
    assert (shock.temperature, shock.top_p) == (0.5, 1.0)


def test_jerk_needs_four_scores():
    assert states(request().run(3.0, 3.5, 2.5)) == ["NEUTRAL"] * 3


def test_jerk_needs_four_defined_scores_in_a_row():
    assert states(request().run(3.0, 3.0, 3.0, math.nan, 3.5, 3.0, 3.5, 3.0)) == ["NEUTRAL"] * 7 + ["SHOCK"]


def test_jerk_is_the_third_difference_of_the_running_mean():
    shock = ARTICLE.shock.model_copy(update={"smoothing": 0.3})
    profile = ARTICLE.model_copy(update={"shock": shock})
    last = Request(profile).run(3.0, 3.4, 2.9, 3.7)[-1]
    a = 3.0
    b = 0.7 * a + 0.3 * 3.4
    c = 0.7 * b + 0.3 * 2.9
    d = 0.7 * c + 0.3 * 3.7
    assert last.values[JERK] == pytest.approx(d - 3 * c + 3 * b - a, abs=1e-5)


def test_five_entropies_closer_than_0_03_stop_the_answer():
    r = request()
    steps = [r.step(entropy=e) for e in (1, 1.02, 1.01, 1, 1.03)]
    assert states(steps) == ["NEUTRAL"] * 4 + ["FUSE"]
    assert [s.stop for s in steps] == [False] * 4 + [True]
    assert steps[-1].sequence == 1


@pytest.mark.parametrize(("step", "stops"), [(0.0205, True), (0.0218, False)])
def test_the_fuse_compares_the_standard_deviation(step, stops):
    # Five evenly spaced numbers have standard deviation sqrt(2) times their distance.
    r = request()
    assert [r.step(entropy=1 + i * step).stop for i in range(5)] == [False] * 4 + [stops]


def test_the_fuse_looks_at_the_last_five_only():
    r = request()
    assert [r.step(entropy=e).stop for e in (0.2, 3.0, 1, 1, 1, 1, 1, 2)] == [False] * 6 + [True, False]


def test_forced_tokens_do_not_count_for_the_fuse():
    r = request()
    assert not any(r.step(entropy=0, forced=True).stop for _ in range(9))
    assert [r.step(entropy=1, forced=f).stop for f in (0, 0, 1, 0, 1, 0, 1, 0)] == [False] * 7 + [True]


def test_undefined_entropies_do_not_count_for_the_fuse():
    r = request()
    assert [r.step(entropy=e).stop for e in (1, 1, math.nan, 1, 1, math.nan, 1)] == [False] * 6 + [True]


@pytest.mark.parametrize(("agreement", "again"), [(0.64, True), (0.66, False), (math.nan, False)])
def test_agreement_of_blocks_below_0_65_draws_again(agreement, again):
    step = request().step(consistency=agreement)
    assert step.resample is again
    assert step.state is State.NEUTRAL
    assert step.sequence == again


def test_greedy_stays_greedy():
    r = request(temperature=0.0, top_p=0.9)
    steps = [*r.run(4.3, 4.2, 4.1, 1.0), r.step(1.0, consistency=0.1)]
    assert states(steps) == ["HIGH", "HIGH", "HIGH", "SHOCK", "SHOCK"]
    for s in steps:
        assert (s.temperature, s.resample, s.sequence) == (0.0, False, 0)
        assert s.top_p == pytest.approx(0.9)


def test_the_fuse_stops_greedy_answers_too():
    r = request(temperature=0.0)
    steps = [r.step(entropy=1) for _ in range(5)]
    assert [s.stop for s in steps] == [False] * 4 + [True]
    assert steps[-1].temperature == 0.0


def test_monitoring_reports_and_overrides_nothing():
    r = request(temperature=0.7, top_p=0.9, acting=False)
    steps = r.run(4.3, 4.2, 4.1, 1.0, 3.0, entropy=1, consistency=0.1)
    assert states(steps) == ["HIGH", "HIGH", "HIGH", "SHOCK", "FUSE"]
    for s in steps:
        assert (s.stop, s.resample, s.sequence) == (False, False, 0)
        assert (s.temperature, s.top_p) == pytest.approx((0.7, 0.9))


def test_the_fuse_comes_before_shock():
    assert states(request().run(3.0, 3.0, 3.0, 3.0, 3.5, entropy=1))[-1] == "FUSE"


def test_shock_comes_before_high():
    last = request().run(3.0, 3.0, 3.0, 4.5)[-1]
    assert last.state is State.SHOCK
    assert last.temperature == 0.5


def test_shock_ends_what_is_held():
    steps = request().run(3.0, 3.0, 4.3, 3.0, math.nan)
    assert states(steps) == ["NEUTRAL", "NEUTRAL", "HIGH", "SHOCK", "NEUTRAL"]


def test_high_comes_before_low():
    steps = request(temperature=0.7).run(4.3, 2.0)
    assert states(steps) == ["HIGH", "HIGH"]
    assert steps[1].temperature == pytest.approx(0.3)


def test_low_comes_before_neutral():
    low = ARTICLE.low.model_copy(update={"action": Action(temperature=0.85, hold=2)})
    steps = Request(ARTICLE.model_copy(update={"low": low}), temperature=0.7).run(2.0, 3.0, 3.0)
    assert states(steps) == ["LOW", "LOW", "NEUTRAL"]
    assert [s.temperature for s in steps] == pytest.approx([0.85, 0.85, 0.7])


def test_an_undefined_score_is_neutral_and_says_so():
    step = request(temperature=0.7).step(math.nan)
    assert step.state is State.NEUTRAL
    assert step.temperature == pytest.approx(0.7)
    assert "undefined" in reason(ARTICLE, step.values)


def test_a_held_state_goes_on_over_an_undefined_score():
    assert states(request().run(4.3, math.nan, math.nan, math.nan)) == ["HIGH"] * 3 + ["NEUTRAL"]


def test_overrides_are_numbered_in_their_request():
    r = request(temperature=0.7)
    steps = [r.step(4.3), r.step(4.2), r.step(4.1), r.step(4.0), r.step(3.9, consistency=0.1)]
    assert [s.sequence for s in steps] == [1, 2, 3, 0, 4]


def test_an_absent_signal_of_agreement_draws_nothing_again():
    r = request()
    one = np.ones(1, np.float32)
    unmeasured = make_signals(3 * one, one, one, np.array([False]), consistency=None)
    assert not r.controller.decide(unmeasured, r.slots).resample.any()
