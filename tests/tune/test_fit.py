"""Fitting a determinacy recipe and making a profile of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.control import Controller, Profile, ShockRule, parse_profile
from surefoot.control import overrides as row
from surefoot.errors import InputError
from surefoot.signals import AttentionStatistics, Signals
from surefoot.signals.logits import logit_statistics
from surefoot.tune.baseline import Baseline
from surefoot.tune.calibrate import jerks, make_profile
from surefoot.tune.data import Corpus
from surefoot.tune.determinacy import TOLERANCE, fit_determinacy

LAYERS, HEADS, TOKENS, PER_SEQUENCE = 6, 4, 1200, 40


def planted(layers: tuple[int, ...] = (1, 4), tokens: int = TOKENS, seed: int = 0, noise: float = 0.3) -> Baseline:
    """Entropy depends on the heads of some layers and on nothing else."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(tokens, 1, LAYERS, HEADS)).astype(np.float32)
    entropy = 2.0 + x[:, 0, list(layers)].sum((1, 2)) / 2 + noise * rng.normal(size=tokens)
    sequence = np.arange(tokens) // PER_SEQUENCE
    return Baseline(("kurtosis",), x, entropy.astype(np.float32), np.exp(x).mean((1, 2, 3)), sequence, sequence)


def corpus() -> Corpus:
    items = [f"prompt {i}" for i in range(30)]
    return Corpus("planted.jsonl", "0" * 64, items, items, False)


@pytest.mark.parametrize("layers", [(1, 4), (0,), (2, 3, 5)])
def test_planted_layers_are_recovered(layers: tuple[int, ...]) -> None:
    fit = fit_determinacy(planted(layers))
    assert fit.layers == layers
    assert fit.correlation > 0.9
    assert fit.correlation >= fit.correlation_all - TOLERANCE


def test_the_score_is_minus_the_entropy_and_the_recipes_own() -> None:
    baseline = planted()
    fit = fit_determinacy(baseline)
    assert np.corrcoef(fit.score, -baseline.entropy)[0, 1] > 0.9
    assert abs((fit.score + baseline.entropy).mean()) < 0.05
    x = torch.from_numpy(baseline.features[:, 0, list(fit.layers)]).exp()
    attention = AttentionStatistics(mean=x, std=x, kurtosis=x, skewness=x)
    scored = fit.recipe.compile(torch.device("cpu"))(attention, x.flatten(1).mean(1)).numpy()
    np.testing.assert_allclose(scored, fit.score, atol=1e-3)


def test_noise_is_not_fitted() -> None:
    baseline = planted()
    shuffled = np.random.default_rng(1).permutation(baseline.entropy)
    assert fit_determinacy(replace(baseline, entropy=shuffled)).correlation_all < 0.15


@pytest.mark.parametrize("kind", ["careful", "creative"])
def test_a_profile_is_reproducible(kind: Any) -> None:
    made = [
        make_profile(kind, "p", "m", "float32", corpus(), baseline, fit_determinacy(baseline)).dump()
        for baseline in (planted(), planted())
    ]
    assert made[0] == made[1]


@pytest.mark.parametrize("kind", ["careful", "creative"])
def test_a_profile_reads_back_as_it_was_written(kind: Any) -> None:
    import json

    baseline = planted()
    profile = make_profile(kind, "p", "m", "float32", corpus(), baseline, fit_determinacy(baseline))
    assert parse_profile(json.loads(profile.dump())) == profile


def test_careful_cools_the_less_determinate_half() -> None:
    baseline = planted()
    fit = fit_determinacy(baseline)
    profile = make_profile("careful", "p", "m", "float32", corpus(), baseline, fit)
    assert profile.low is not None
    assert (fit.score < profile.low.threshold).mean() == pytest.approx(0.5, abs=0.01)
    assert profile.low.action.approach == "lower"
    assert profile.high is None
    assert profile.shock is None


def test_creative_takes_a_tenth_as_high_a_fifth_as_low_and_a_hundredth_as_shock() -> None:
    baseline = planted()
    fit = fit_determinacy(baseline)
    profile = make_profile("creative", "p", "m", "float32", corpus(), baseline, fit)
    assert profile.low and profile.high and profile.shock
    assert (fit.score < profile.low.threshold).mean() == pytest.approx(0.2, abs=0.01)
    assert (fit.score > profile.high.threshold).mean() == pytest.approx(0.1, abs=0.01)
    jerk = np.abs(jerks(fit.score, baseline.sequence))
    assert (jerk > profile.shock.threshold * profile.shock.unit).mean() == pytest.approx(0.01, abs=0.003)


def test_too_few_tokens_are_refused() -> None:
    with pytest.raises(InputError, match="too few"):
        fit_determinacy(planted(tokens=400))


def test_too_few_groups_are_refused() -> None:
    baseline = planted()
    with pytest.raises(InputError, match="4 independent"):
        fit_determinacy(replace(baseline, group=baseline.sequence % 4))


def test_a_constant_entropy_is_refused() -> None:
    baseline = planted()
    with pytest.raises(InputError, match="never changes"):
        fit_determinacy(replace(baseline, entropy=np.full_like(baseline.entropy, 1.5)))


def test_group_numbers_with_gaps_are_fitted_as_well() -> None:
    baseline = planted()  # short passages are skipped, so group numbers need not be consecutive
    assert fit_determinacy(replace(baseline, group=baseline.group * 5)).layers == (1, 4)


@pytest.mark.parametrize("smoothing", [0.5, 0.25, 1.0])
def test_jerks_are_those_of_the_controller(smoothing: float) -> None:
    rng = np.random.default_rng(0)
    lengths = [12, 3, 20, 4]
    score = rng.normal(size=sum(lengths))
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    profile = Profile(name="p", shock=ShockRule(threshold=1e6, smoothing=smoothing))
    wanted = []
    slot = torch.zeros(1, dtype=torch.int64)
    for s in range(len(lengths)):
        controller = Controller(profile, 1)
        controller.reset(slot)
        for value in score[sequence == s]:
            k = torch.full((1, 1, 1), float(value))
            signals = Signals(AttentionStatistics(k, k, k, k), logit_statistics(torch.randn(1, 5)))
            jerk = float(controller.decide(signals, slot).packed[row.JERK, 0])
            if not np.isnan(jerk):
                wanted.append(jerk)
    np.testing.assert_allclose(jerks(score, sequence, smoothing), wanted, atol=1e-5)
