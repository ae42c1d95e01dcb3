"""Which of the decided overrides the sampler applied (S5)."""

import pytest
import torch
from controller_reference import Request

from surefoot.control import Controller, Ledger, SamplerStep, load_profile

HIGH = 4.3


def start_request():
    return Request(load_profile("article"))


def report(request, sequence):
    request.controller.acknowledge(SamplerStep(torch.tensor([float(sequence)])), request.slots)


def test_an_override_reported_by_its_number_is_applied():
    request = start_request()
    report(request, request.step(HIGH).sequence)
    assert request.controller.ledger() == Ledger(decided=1, applied=1)


@pytest.mark.parametrize("wrong", [-1, 0, 2, 7])
def test_another_number_is_a_dropped_override(wrong):
    request = start_request()
    request.step(HIGH)
    report(request, wrong)
    assert request.controller.ledger() == Ledger(decided=1, applied=0)


def test_an_earlier_number_is_a_dropped_override():
    request = start_request()
    first, second = request.run(HIGH, HIGH)
    report(request, first.sequence)
    assert second.sequence == 2
    assert request.controller.ledger() == Ledger(decided=2, applied=0)


def test_an_override_never_reported_is_dropped():
    request = start_request()
    request.run(HIGH, HIGH, HIGH)
    assert request.controller.ledger().drop_rate == 1


def test_nothing_decided_counts_nothing():
    request = start_request()
    report(request, request.step(3.0).sequence)
    assert request.controller.ledger() == Ledger(decided=0, applied=0)


def test_a_token_without_override_is_not_counted_as_applied():
    request = start_request()
    for score in (HIGH, 4.19, 4.08, 3.97, 3.86):
        report(request, request.step(score).sequence)
    assert request.controller.ledger() == Ledger(decided=3, applied=3)


def test_an_override_reported_twice_is_applied_once():
    request = start_request()
    sequence = request.step(HIGH).sequence
    report(request, sequence)
    report(request, sequence)
    assert request.controller.ledger() == Ledger(decided=1, applied=1)


def test_the_ledger_sums_over_the_slots_asked_for():
    controller = Controller(load_profile("article"), 3)
    request = Request(load_profile("article"))
    request.run(HIGH, HIGH)
    report(request, 2)
    for slot in (0, 2):
        controller.restore(slot, request.controller.snapshot(0))
    assert controller.ledger() == Ledger(decided=4, applied=2)
    assert controller.ledger(torch.tensor([2])) == Ledger(decided=2, applied=1)
    assert controller.ledger(torch.tensor([1])) == Ledger(decided=0, applied=0)


@pytest.mark.parametrize(("decided", "applied", "rate"), [(0, 0, 0.0), (4, 4, 0.0), (4, 3, 0.25), (4, 0, 1.0)])
def test_drop_rate_is_the_share_not_applied(decided, applied, rate):
    assert Ledger(decided, applied).drop_rate == rate
