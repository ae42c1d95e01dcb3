"""The vectorised state machine equals the plain one, on 10,000 random sequences; torch equals NumPy."""

import numpy as np
import torch
from controller_reference import Reference, decide_all, make_requests, profiles, start
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.control import Controller, State, load_profile
from surefoot.control.machine import ACTING, FIXED, P0, S1, S3, SAMPLING, T0, Machine
from surefoot.control.overrides import RESAMPLE, SEQUENCE, STATE, STOP, TEMPERATURE, TOP_P

SEQUENCES, LENGTH = 100, 14
seeds = st.integers(0, 2**32 - 1)


def run_reference(profile, requests, measured):
    references = [Reference(profile, *row) for row in zip(*vars(requests).values(), strict=True)]
    rows = []
    for token in zip(*vars(measured).values(), strict=True):
        steps = [r.step(*row) for r, row in zip(references, zip(*token, strict=True), strict=True)]
        rows.append([[s.state, s.stop, s.resample, s.sequence, s.temperature, s.top_p] for s in steps])
    return np.array(rows, np.float32).swapaxes(1, 2)


@settings(max_examples=100, deadline=None)
@given(profiles(), seeds)
def test_equals_the_plain_reference(profile, seed):
    requests, measured = make_requests(seed, SEQUENCES, LENGTH)
    slots = torch.arange(SEQUENCES)
    controller = Controller(profile, SEQUENCES)
    start(controller, slots, requests)
    decided = decide_all(controller, slots, measured, range(LENGTH))
    expected = run_reference(profile, requests, measured)
    np.testing.assert_array_equal(decided[:, [STATE, STOP, RESAMPLE, SEQUENCE]], expected[:, :4])
    np.testing.assert_allclose(decided[:, [TEMPERATURE, TOP_P]], expected[:, 4:], rtol=0, atol=1e-6)


def test_the_random_sequences_visit_every_state():
    requests, measured = make_requests(0, SEQUENCES, LENGTH)
    expected = run_reference(load_profile("article"), requests, measured)
    states, counts = np.unique(expected[:, 0], return_counts=True)
    assert states.tolist() == list(State)
    assert counts.min() > 20


@settings(max_examples=30, deadline=None)
@given(profiles(), seeds)
def test_torch_equals_numpy(profile, seed):
    requests, measured = make_requests(seed, 20, LENGTH)
    slots = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    controller = Controller(profile, 20)
    start(controller, slots, requests)
    decided = decide_all(controller, slots, measured, range(LENGTH))

    machine = Machine(profile, torch, torch.device("cpu"))
    state = initial_state(machine, requests, slots)
    for token in range(LENGTH):
        score, std, entropy, forced, consistency = (torch.from_numpy(x[token]) for x in vars(measured).values())
        out = machine.advance(state, score, std, entropy, forced, consistency, score, slots)
        np.testing.assert_allclose(out.numpy(), decided[token], rtol=1e-6, atol=1e-6)


def initial_state(machine, requests, slots):
    state = torch.zeros(FIXED + machine.window - 1, len(slots))
    state[S1 : S3 + 1] = torch.nan
    for row, value in zip((T0, P0, ACTING), vars(requests).values(), strict=True):
        state[row, slots] = torch.from_numpy(value).float()
    state[SAMPLING] = state[ACTING] * (state[T0] > 0)
    return state
