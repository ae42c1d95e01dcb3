"""A request's decisions are its own: no neighbour, no slot, no earlier request and no preemption changes them."""

import numpy as np
import pytest
import torch
from controller_reference import Request, decide_all, make_requests, profiles, signals_at, start
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.control import Controller, load_profile, parse_profile

ROWS, LENGTH = 9, 12
seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=30, deadline=None)


def run(profile, requests, measured, rows, capacity=ROWS, slots=None):
    slots = torch.arange(len(rows)) if slots is None else slots
    controller = Controller(profile, capacity)
    start(controller, slots, requests, rows)
    return decide_all(controller, slots, measured, range(LENGTH), rows)


@few
@given(profiles(), seeds)
def test_the_order_of_rows_does_not_matter(profile, seed):
    requests, measured = make_requests(seed, ROWS, LENGTH)
    order = np.random.default_rng(seed).permutation(ROWS)
    ordered = run(profile, requests, measured, np.arange(ROWS))
    np.testing.assert_array_equal(run(profile, requests, measured, order), ordered[:, :, order])


@few
@given(profiles(), seeds)
def test_neither_slot_nor_neighbours_matter(profile, seed):
    requests, measured = make_requests(seed, ROWS, LENGTH)
    slots = torch.from_numpy(np.random.default_rng(seed).permutation(40)[:ROWS])
    together = run(profile, requests, measured, np.arange(ROWS), 40, slots)
    for row in range(ROWS):
        alone = run(profile, requests, measured, np.array([row]), 1)
        np.testing.assert_array_equal(alone[:, :, 0], together[:, :, row])


@few
@given(profiles(), seeds)
def test_rows_may_come_and_go_between_steps(profile, seed):
    requests, measured = make_requests(seed, ROWS, LENGTH)
    together = run(profile, requests, measured, np.arange(ROWS))
    controller = Controller(profile, ROWS)
    start(controller, torch.arange(ROWS), requests)
    for token in range(LENGTH):
        for rows in np.array_split(np.random.default_rng(token).permutation(ROWS), 2):
            packed = controller.decide(signals_at(measured, token, rows), torch.from_numpy(rows)).packed
            np.testing.assert_array_equal(packed, together[token][:, rows])


@few
@given(profiles(), seeds, st.integers(0, LENGTH))
def test_a_preempted_request_goes_on_elsewhere(profile, seed, split):
    requests, measured = make_requests(seed, ROWS, LENGTH)
    whole = run(profile, requests, measured, np.arange(ROWS))

    first, slots = Controller(profile, ROWS), torch.arange(ROWS)
    start(first, slots, requests)
    for token in range(split):
        first.decide(signals_at(measured, token), slots)
    second, elsewhere = Controller(parse_profile(profile.model_dump()), 2 * ROWS), torch.arange(ROWS).flip(0) + 5
    for old, new in zip(slots.tolist(), elsewhere.tolist(), strict=True):
        second.restore(new, first.snapshot(old))
    for token in range(split, LENGTH):
        packed = second.decide(signals_at(measured, token), elsewhere).packed
        np.testing.assert_array_equal(packed, whole[token])


@few
@given(profiles(), seeds)
def test_a_used_slot_remembers_nothing_after_reset(profile, seed):
    slots = torch.arange(ROWS)
    used, fresh = Controller(profile, ROWS), Controller(profile, ROWS)
    requests, measured = make_requests(seed, ROWS, LENGTH)
    start(used, slots, requests)
    decide_all(used, slots, measured, range(LENGTH))
    requests, measured = make_requests(seed + 1, ROWS, LENGTH)
    for controller in (used, fresh):
        start(controller, slots, requests)
    again, expected = (decide_all(c, slots, measured, range(LENGTH)) for c in (used, fresh))
    np.testing.assert_array_equal(again, expected)
    assert used.ledger() == fresh.ledger()


def test_reset_leaves_other_slots_alone():
    profile = load_profile("article")
    requests, measured = make_requests(3, 2, LENGTH)
    undisturbed = run(profile, requests, measured, np.arange(2), 3)
    controller, slots = Controller(profile, 3), torch.arange(2)
    start(controller, slots, requests)
    for token in range(LENGTH):
        controller.reset(torch.tensor([2]))
        packed = controller.decide(signals_at(measured, token), slots).packed
        np.testing.assert_array_equal(packed, undisturbed[token])


@few
@given(profiles(), seeds)
def test_the_same_state_and_signals_give_the_same_bits(profile, seed):
    requests, measured = make_requests(seed, ROWS, LENGTH)
    controller, slots = Controller(profile, ROWS), torch.arange(ROWS)
    start(controller, slots, requests)
    for token in range(LENGTH):
        snapshots = [controller.snapshot(slot) for slot in range(ROWS)]
        signals = signals_at(measured, token)
        once = controller.decide(signals, slots).packed
        for slot, snapshot in enumerate(snapshots):
            controller.restore(slot, snapshot)
        twice = controller.decide(signals, slots).packed
        assert once.numpy().tobytes() == twice.numpy().tobytes()


def test_deciding_leaves_signals_and_earlier_decisions_as_they_were():
    requests, measured = make_requests(0, ROWS, LENGTH)
    controller, slots = Controller(load_profile("article"), ROWS), torch.arange(ROWS)
    start(controller, slots, requests)
    signals = signals_at(measured, 0)
    before = [x.clone() for x in (signals.attention.kurtosis, signals.attention.std, signals.logits.entropy)]
    first = controller.decide(signals, slots).packed
    kept = first.clone()
    decide_all(controller, slots, measured, range(1, LENGTH))
    after = [signals.attention.kurtosis, signals.attention.std, signals.logits.entropy]
    for a, b in zip([*before, kept], [*after, first], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_a_snapshot_does_not_change_with_its_slot():
    request = Request(load_profile("article"))
    snapshot = request.controller.snapshot(0)
    before = snapshot.values.clone()
    request.run(4.3, 2.0, 3.0)
    torch.testing.assert_close(snapshot.values, before, rtol=0, atol=0, equal_nan=True)


def test_a_snapshot_of_another_profile_is_refused():
    snapshot = Controller(load_profile("article"), 1).snapshot(0)
    with pytest.raises(ValueError, match=r"'article'.*'observe'"):
        Controller(load_profile("observe"), 1).restore(0, snapshot)


def test_reset_takes_a_number_for_all_or_one_for_each():
    _, measured = make_requests(0, ROWS, LENGTH)
    packed = []
    for temperature in (0.7, torch.full((ROWS,), 0.7)):
        controller, slots = Controller(load_profile("article"), ROWS), torch.arange(ROWS)
        controller.reset(slots, temperature)
        packed.append(decide_all(controller, slots, measured, range(LENGTH)))
    np.testing.assert_array_equal(*packed)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_controller_without_room_is_refused(capacity):
    with pytest.raises(ValueError, match=f"capacity.*{capacity}"):
        Controller(load_profile("article"), capacity)
