"""Moments against scipy in float64, on the same float32 values."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from surefoot.signals import Moments

N = 2000
MAKERS = {
    "normal": lambda r: r.normal(0, 1, N),
    "uniform": lambda r: r.uniform(-1, 1, N),
    "heavy-tailed": lambda r: r.standard_t(2.5, N),
    "skewed": lambda r: r.gamma(2, 1, N),
    "near-constant": lambda r: r.normal(0.99, 1e-3, N),
    "real-looking cosines": lambda r: r.normal(0.7, 0.04, N),
}
kinds = st.sampled_from(sorted(MAKERS))
seeds = st.integers(0, 2**32 - 1)


def make(kind, seed=0):
    return MAKERS[kind](np.random.default_rng(seed)).astype(np.float32)


def assert_equals_scipy(moments, x):
    x = x.astype(np.float64)
    assert float(moments.count) == pytest.approx(len(x))
    assert float(moments.mean) == pytest.approx(x.mean(), rel=1e-5, abs=1e-6)
    assert float(moments.std) == pytest.approx(x.std(), rel=1e-3)
    assert float(moments.kurtosis) == pytest.approx(stats.kurtosis(x, fisher=False), rel=1e-3)
    assert float(moments.skewness) == pytest.approx(stats.skew(x), rel=1e-3, abs=1e-3)


def assert_same(a, b):
    for name in ("count", "mean", "std", "kurtosis", "skewness"):
        one, other = (torch.as_tensor(getattr(moments, name)) for moments in (a, b))
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("kind", MAKERS)
def test_shape_equals_scipy(kind):
    x = make(kind)
    assert_equals_scipy(Moments.of(torch.from_numpy(x)), x)


@settings(max_examples=100, deadline=None)
@given(kinds, seeds, st.lists(st.integers(0, N), max_size=6))
def test_merged_pieces_equal_the_whole(kind, seed, cuts):
    x = make(kind, seed)
    first, *rest = (Moments.of(torch.from_numpy(piece)) for piece in np.split(x, sorted(cuts)))
    merged = first
    for piece in rest:
        merged = merged.merge(piece)
    assert_equals_scipy(merged, x)


@settings(max_examples=50, deadline=None)
@given(kinds, seeds)
def test_a_weight_counts_a_value_as_often(kind, seed):
    x = make(kind, seed)
    times = np.random.default_rng(seed).integers(0, 4, N)
    weighted = Moments.of(torch.from_numpy(x), torch.from_numpy(times))
    assert_equals_scipy(weighted, np.repeat(x, times))


@pytest.mark.parametrize("garbage", [0.0, 1e30, np.inf, -np.inf, np.nan])
def test_weight_zero_leaves_out_whatever_is_there(garbage):
    x = make("real-looking cosines")
    left_out = np.random.default_rng(1).random(N) < 0.3
    filled = np.where(left_out, np.float32(garbage), x)
    weighted = Moments.of(torch.from_numpy(filled), torch.from_numpy(~left_out))
    assert_equals_scipy(weighted, x[~left_out])


def test_weighted_pieces_merge_to_the_weighted_whole():
    x, w = torch.from_numpy(make("skewed")), torch.rand(N, generator=torch.Generator().manual_seed(0)) * 5
    assert_same(Moments.of(x[:700], w[:700]).merge(Moments.of(x[700:], w[700:])), Moments.of(x, w))


@pytest.mark.parametrize("empty", [Moments.of(torch.zeros(0)), Moments.of(torch.full((5,), torch.nan), torch.zeros(5))])
def test_an_empty_side_changes_nothing(empty):
    whole = Moments.of(torch.from_numpy(make("skewed")))
    assert_same(whole.merge(empty), whole)
    assert_same(empty.merge(whole), whole)


def test_two_empty_sides_are_undefined():
    empty = Moments.of(torch.zeros(0))
    both = empty.merge(empty)
    assert both.count == 0
    assert torch.isnan(torch.stack([both.std, both.kurtosis, both.skewness])).all()


@pytest.mark.parametrize("value", [0.0, 0.1, -0.7, 0.99, 1e-20, 12345.678])
@pytest.mark.parametrize("n", [1, 9, 3001])
def test_constant_values_have_no_shape(value, n):
    x = torch.full((n,), value)
    for moments in (Moments.of(x), Moments.of(x, torch.full((n,), 1.7)), Moments.of(x).merge(Moments.of(x))):
        assert moments.kurtosis.isnan()
        assert moments.skewness.isnan()
        assert float(moments.std) == pytest.approx(0, abs=abs(value) * 1e-6)


def test_leading_axes_are_kept_apart():
    x = np.stack([make(kind) for kind in MAKERS]).reshape(2, 3, N)
    moments = Moments.of(torch.from_numpy(x))
    expected = stats.kurtosis(x.astype(np.float64), axis=-1, fisher=False)
    np.testing.assert_allclose(moments.kurtosis, expected, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_computed_in_float32(dtype):
    x = torch.from_numpy(make("normal")).to(dtype)
    moments = Moments.of(x)
    assert moments.kurtosis.dtype == torch.float32
    assert_equals_scipy(moments, x.double().numpy())
