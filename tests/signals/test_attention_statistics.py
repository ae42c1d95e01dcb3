"""Attention statistics against numpy and scipy in float64, head by head."""

import numpy as np
import pytest
import torch
from scipy import special, stats

from surefoot.signals import STATISTICS, AttentionStatistics, attention_statistics

L, B, HKV, G, N, D = 2, 4, 3, 3, 40, 16
ALL = frozenset(STATISTICS)
# Left padding, and room behind the query that a static cache has not written yet: (first, behind last) visible key.
RANGES = [(0, 40), (7, 40), (0, 31), (12, 29)]


def make_heads():
    r = np.random.default_rng(0)
    q = r.normal(size=(L, B, HKV, G, D)).astype(np.float32)
    k = (r.normal(size=(L, B, HKV, N, D)) + 0.5).astype(np.float32)
    return q, k


def make_weights(ranges):
    weights = torch.zeros(len(ranges), N)
    for row, (first, end) in zip(weights, ranges, strict=True):
        row[first:end] = 1
    return weights


def measure(q, k, **settings):
    dots = torch.from_numpy(np.einsum("lbhgd,lbhnd->lbhgn", q, k))
    q_norms, k_norms = (torch.from_numpy(np.linalg.norm(x, axis=-1)) for x in (q, k))
    return attention_statistics(dots, q_norms, k_norms, wanted=ALL, **settings)


def slow_reference(q, k, ranges, scaling=1.0, softcap=None):
    out = {name: np.empty((B, L, HKV * G)) for name in STATISTICS}
    q, k = q.astype(np.float64), k.astype(np.float64)
    for layer, b, head in np.ndindex(L, B, HKV * G):
        query = q[layer, b, head // G, head % G]
        keys = k[layer, b, head // G, slice(*ranges[b])]
        dots = keys @ query
        cosines = dots / np.linalg.norm(keys, axis=-1) / np.linalg.norm(query)
        scores = dots * scaling
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        p = special.softmax(scores)
        values = {
            "mean": cosines.mean(),
            "std": cosines.std(),
            "kurtosis": stats.kurtosis(cosines, fisher=False),
            "skewness": stats.skew(cosines),
            "entropy": stats.entropy(p),
            "previous": p[-2],
            "sink": p[0],
        }
        for name, value in values.items():
            out[name][b, layer, head] = value
    return out


def assert_close(measured, expected):
    for name in STATISTICS:
        np.testing.assert_allclose(measured.get(name), expected[name], rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("scaling", [1.0, 0.25, torch.tensor(0.25)])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("ranges", [None, RANGES], ids=["all visible", "padded"])
def test_equals_the_slow_reference(ranges, softcap, scaling):
    q, k = make_heads()
    weights = None if ranges is None else make_weights(ranges)
    measured = measure(q, k, scaling=scaling, softcap=softcap, weights=weights)
    assert_close(measured, slow_reference(q, k, ranges or [(0, N)] * B, float(scaling), softcap))


@pytest.mark.parametrize("garbage", [0.0, np.inf, np.nan])
def test_what_is_not_visible_may_be_anything(garbage):
    q, k = make_heads()
    expected = slow_reference(q, k, RANGES, 0.25)
    for b, (first, end) in enumerate(RANGES):
        k[:, b, :, :first] = garbage
        k[:, b, :, end:] = garbage
    with np.errstate(invalid="ignore"):
        measured = measure(q, k, scaling=0.25, weights=make_weights(RANGES))
    assert_close(measured, expected)


@pytest.mark.parametrize("b", range(B))
def test_a_row_of_a_padded_batch_equals_the_row_alone(b):
    q, k = make_heads()
    batch = measure(q, k, scaling=0.25, weights=make_weights(RANGES))
    alone = measure(q[:, b : b + 1], k[:, b : b + 1, :, slice(*RANGES[b])], scaling=0.25)
    for name in STATISTICS:
        torch.testing.assert_close(batch.get(name)[b], alone.get(name)[0], rtol=1e-4, atol=1e-5)


def test_a_key_of_weight_w_equals_w_equal_keys():
    q, k = make_heads()
    times = np.random.default_rng(1).integers(1, 5, N)
    times[[0, -2, -1]] = 1
    weighted = measure(q, k, scaling=0.25, weights=torch.from_numpy(times).float().expand(B, N))
    repeated = measure(q, np.repeat(k, times, axis=3), scaling=0.25)
    for name in STATISTICS:
        torch.testing.assert_close(weighted.get(name), repeated.get(name), rtol=1e-3, atol=1e-5)


def test_fewer_keys_than_asked_for_leave_the_moments_undefined():
    q, k = make_heads()
    weights = make_weights([(0, 7), (5, 12), (0, 8), (30, 40)])
    measured = measure(q, k, weights=weights, min_keys=8)
    for name in ("mean", "std", "kurtosis", "skewness"):
        undefined = measured.get(name).isnan().flatten(1)
        assert undefined[:2].all()
        assert not undefined[2:].any()


@pytest.mark.parametrize(("n", "undefined"), [(7, True), (8, False)])
def test_fewer_keys_than_asked_for_are_noticed_without_a_mask(n, undefined):
    q, k = make_heads()
    assert measure(q, k[:, :, :, :n], min_keys=8).kurtosis.isnan().all() == undefined


def test_the_weight_statistics_are_defined_with_few_keys():
    q, k = make_heads()
    measured = measure(q, k[:, :, :, :3], min_keys=8)
    assert not any(measured.get(name).isnan().any() for name in ("entropy", "previous", "sink"))


@pytest.mark.parametrize("masked", [False, True])
def test_a_single_visible_key_has_all_the_weight_and_no_previous_one(masked):
    q, k = make_heads()
    measured = measure(q, k, weights=make_weights([(9, 10)] * B)) if masked else measure(q, k[:, :, :, :1])
    assert (measured.sink == 1).all()
    assert (measured.previous == 0).all()
    assert (measured.entropy == 0).all()


def test_weight_statistics_are_left_out_when_not_wanted():
    q, k = (torch.from_numpy(x) for x in make_heads())
    dots = torch.einsum("lbhgd,lbhnd->lbhgn", q, k)
    measured = attention_statistics(dots, q.norm(dim=-1), k.norm(dim=-1), wanted={"kurtosis"})
    assert measured.kurtosis.shape == (B, L, HKV * G)
    assert measured.entropy is measured.previous is measured.sink is None


def test_a_statistic_that_was_not_measured_is_named():
    nothing = torch.zeros(1, 1, 1)
    with pytest.raises(ValueError, match="'sink' was not measured"):
        AttentionStatistics(nothing, nothing, nothing, nothing).get("sink")


def test_half_precision_is_measured_in_float32():
    q, k = (torch.from_numpy(x).bfloat16() for x in make_heads())
    dots = torch.einsum("lbhgd,lbhnd->lbhgn", q, k)
    norms = q.norm(dim=-1), k.norm(dim=-1)
    measured = attention_statistics(dots, *norms, wanted=ALL)
    same = attention_statistics(dots.float(), *(x.float() for x in norms), wanted=ALL)
    for name in STATISTICS:
        assert measured.get(name).dtype == torch.float32
        torch.testing.assert_close(measured.get(name), same.get(name))
