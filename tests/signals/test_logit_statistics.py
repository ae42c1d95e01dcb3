"""Logit statistics against scipy, and what masks and damage do to them."""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from surefoot.signals import logit_statistics

INF, NAN = math.inf, math.nan


def make_logits(scale, masked=0.0):
    r = np.random.default_rng(0)
    x = (r.normal(size=(6, 500)) * scale + 20).astype(np.float32)
    x[r.random(x.shape) < masked] = -np.inf
    return x


def surprise(p):
    return -np.log(np.where(p > 0, p, 1))


@pytest.mark.parametrize("masked", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("scale", [0.01, 1, 10, 1000])
def test_equals_scipy(scale, masked):
    x = make_logits(scale, masked)
    measured = logit_statistics(torch.from_numpy(x), everything=True)
    p = special.softmax(x.astype(np.float64), axis=-1)
    entropy = stats.entropy(p, axis=-1)
    two = np.sort(p, axis=-1)[:, -2:]
    np.testing.assert_allclose(measured.entropy, entropy, rtol=1e-4, atol=1e-5)
    variance = (p * (surprise(p) - entropy[:, None]) ** 2).sum(-1)
    np.testing.assert_allclose(measured.varentropy, variance, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(measured.top_probability, two[:, 1], rtol=1e-4)
    np.testing.assert_allclose(measured.margin, two[:, 1] - two[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_measured_in_float32(dtype):
    x = torch.from_numpy(make_logits(2)).to(dtype)
    measured = logit_statistics(x, everything=True)
    assert measured.entropy.dtype == torch.float32
    expected = stats.entropy(special.softmax(x.double().numpy(), axis=-1), axis=-1)
    np.testing.assert_allclose(measured.entropy, expected, rtol=1e-4)


def test_equal_logits_have_the_largest_entropy_and_no_varentropy():
    measured = logit_statistics(torch.full((1, 64), 7.0), everything=True)
    assert float(measured.entropy) == pytest.approx(math.log(64))
    assert float(measured.varentropy) == pytest.approx(0, abs=1e-4)
    assert float(measured.margin) == 0


def test_varentropy_is_never_negative():
    r = torch.Generator().manual_seed(0)
    x = torch.rand(500, 50, generator=r) * 1e-3
    assert (logit_statistics(x, everything=True).varentropy >= 0).all()


@pytest.mark.parametrize(
    ("logits", "forced"),
    [
        ([-INF, 2.0, -INF, -INF], True),
        ([-INF, 2.0, -INF, -1e30], True),
        ([-INF, 2.0, 1.0, -INF], False),
        ([90.0, 0.0, 0.0, 0.0], False),
        ([-INF, -INF, -INF, -INF], False),
        ([-INF, NAN, -INF, -INF], False),
        ([-INF, INF, -INF, -INF], False),
        ([5.0], True),
    ],
)
def test_forced_when_one_finite_logit_is_left(logits, forced):
    assert logit_statistics(torch.tensor([logits])).forced.tolist() == [forced]


def test_a_forced_token_is_certain():
    measured = logit_statistics(torch.tensor([[-INF, 2.0, -INF]]), everything=True)
    assert measured.entropy.tolist() == measured.varentropy.tolist() == [0]
    assert measured.top_probability.tolist() == measured.margin.tolist() == [1]


@pytest.mark.parametrize("row", [[NAN, 1.0, 2.0], [INF, 1.0, 2.0], [INF, INF, 2.0], [-INF] * 3, [NAN, -INF, -INF]])
def test_damaged_logits_have_no_entropy_and_spoil_no_other_row(row):
    healthy = [1.0, 2.0, 3.0]
    measured = logit_statistics(torch.tensor([healthy, row, healthy]), everything=True)
    alone = logit_statistics(torch.tensor([healthy]), everything=True)
    assert measured.entropy.isnan().tolist() == [False, True, False]
    assert measured.entropy[[0, 2]].tolist() == alone.entropy.tolist() * 2


def test_logits_are_left_as_they_were():
    x = torch.from_numpy(make_logits(1, 0.5))
    before = x.clone()
    logit_statistics(x, everything=True)
    assert torch.equal(x, before)


def test_margin_is_left_out_unless_asked_for():
    assert logit_statistics(torch.zeros(1, 3)).margin is None
