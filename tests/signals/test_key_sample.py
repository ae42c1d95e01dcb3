"""Which keys are read, and what the sample says about all of them."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from surefoot.signals import KeySample, Moments

CPU = torch.device("cpu")
LONG = 6000
sizes = st.integers(1, 20_000)
limits = st.integers(128, 4096)


def read_by(sample, n):
    return sample.take(torch.arange(n)).tolist()


def kurtosis_of(x, max_keys):
    sample = KeySample.of(x.shape[-1], max_keys)
    return Moments.of(sample.take(x), sample.weight_vector(CPU)).kurtosis


def normal_heads(heads):
    return torch.randn(heads, LONG, generator=torch.Generator().manual_seed(0)) * 0.04 + 0.7


@given(sizes, limits)
def test_every_key_is_read_when_the_limit_allows_it(n, max_keys):
    sample = KeySample.of(n, max_keys)
    assert sample.exact == (n <= max_keys)
    if n <= max_keys:
        assert read_by(sample, n) == list(range(n))
        assert sample.weight_vector(CPU).tolist() == [1.0] * n


def test_every_key_is_read_without_a_limit():
    assert read_by(KeySample.of(9000, None), 9000) == list(range(9000))


@given(sizes, limits)
def test_never_reads_more_than_the_limit(n, max_keys):
    sample = KeySample.of(n, max_keys)
    assert len(read_by(sample, n)) == sum(sample.lengths) <= max_keys


@given(limits, st.integers(1, 20_000))
def test_reads_at_least_a_third_of_what_the_limit_allows(max_keys, more):
    n = max_keys + more
    assert len(read_by(KeySample.of(n, max_keys), n)) > max_keys / 3


@given(sizes, limits)
def test_keys_are_read_in_order_and_once(n, max_keys):
    keys = read_by(KeySample.of(n, max_keys), n)
    assert keys == sorted(set(keys))


@given(sizes, limits)
def test_weights_add_up_to_all_keys(n, max_keys):
    weights = KeySample.of(n, max_keys).weight_vector(CPU)
    assert float(weights.double().sum()) == pytest.approx(n, rel=1e-6)


@given(limits, st.integers(1, 20_000))
def test_the_first_four_and_last_sixty_stand_for_themselves(max_keys, more):
    n = max_keys + more
    sample = KeySample.of(n, max_keys)
    keys, weights = read_by(sample, n), sample.weight_vector(CPU)
    assert keys[:4] == list(range(4))
    assert keys[-60:] == list(range(n - 60, n))
    assert (weights[:4] == 1).all()
    assert (weights[-60:] == 1).all()


@given(limits, st.integers(1, 20_000))
def test_the_keys_between_are_read_evenly(max_keys, more):
    n = max_keys + more
    between = read_by(KeySample.of(n, max_keys), n)[4:-60]
    steps = {b - a for a, b in pairwise(between)}
    assert len(steps) <= 1


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
@pytest.mark.parametrize("max_keys", [128, 512])
def test_take_equals_indexing(dim, max_keys):
    x = torch.randn(300, 300, generator=torch.Generator().manual_seed(0))
    sample = KeySample.of(300, max_keys)
    keys = torch.tensor(read_by(sample, 300))
    assert torch.equal(sample.take(x, dim), x.index_select(dim, keys))


def test_the_same_keys_are_read_again():
    assert KeySample.of(LONG, 512) == KeySample.of(LONG, 512)


@pytest.mark.parametrize("max_keys", [2048, 512])
def test_sampled_kurtosis_is_close_to_the_exact_one(max_keys):
    x = normal_heads(200)
    error = kurtosis_of(x, max_keys) - kurtosis_of(x, None)
    standard_error = math.sqrt(24 / max_keys)
    assert error.abs().max() < 4 * standard_error
    assert error.abs().mean() < standard_error
    assert abs(error.mean()) < 4 * standard_error / math.sqrt(200)


@pytest.mark.parametrize("size", [0.5, 5.0, 100.0])
@pytest.mark.parametrize("max_keys", [2048, 512])
def test_an_attention_sink_weighs_as_much_in_the_sample_as_in_the_whole(max_keys, size):
    x = normal_heads(50)
    x[:, 0] -= size
    torch.testing.assert_close(kurtosis_of(x, max_keys), kurtosis_of(x, None), rtol=0.25, atol=0.0)
