"""Calibrated profiles: thresholds that are quantiles of a model's own baseline."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np

import surefoot
from surefoot.control import Action, HighRule, LowRule, Probe, Profile, Provenance, ShockRule
from surefoot.errors import InputError
from surefoot.tune.baseline import Array, Baseline
from surefoot.tune.data import Corpus
from surefoot.tune.determinacy import Fit

Kind = Literal["careful", "creative"]

# LOW and HIGH as quantiles of the determinacy score on the baseline.
LOW_QUANTILE = {"careful": 0.50, "creative": 0.20}
HIGH_QUANTILE = 0.90
# The schedule of LOW in `creative` ends where only so many tokens are less determinate.
DEEP_QUANTILE = 0.02
# Weight of the newest score in the running mean that SHOCK differentiates, and the share of tokens it may take.
SMOOTHING = 0.5
SHOCK_QUANTILE = 0.99
_DESCRIPTIONS = {
    "careful": "Careful where the model is unsure, free where it is determinate: for facts.",
    "creative": "The article's direction on calibrated thresholds: firm where determinate, freer at a fork.",
}


def make_profile(
    kind: Kind, name: str, model: str, dtype: str, corpus: Corpus, baseline: Baseline, fit: Fit
) -> Profile:
    """A profile of one kind from a fitted baseline.

    Parameters
    ----------
    kind : {"careful", "creative"}
        ``careful`` cools LOW tokens; ``creative`` has the article's actions (HIGH cooler and top-p off for 3 tokens,
        LOW up to 0.85, SHOCK 0.5).
    name, model, dtype : str
        Name of the profile; identity and dtype of the model.
    corpus, baseline, fit
        Where its numbers come from.
    """
    score = fit.score
    low, deep, high = np.quantile(score, [LOW_QUANTILE[kind], DEEP_QUANTILE, HIGH_QUANTILE])
    spread = float(score.std())
    if not (deep < low < high):
        raise InputError(
            "the determinacy score hardly changes on this corpus, so its quantiles are no thresholds.",
            "Calibrate on more varied prompts, or more of them.",
        )
    if kind == "careful":
        # What it is worth, and what SHOCK and the fuse are not: docs/results.md.
        low_action = Action(temperature=0.1, approach="lower")
        high_rule, shock_rule = None, None
    else:
        low_action = Action(temperature=0.85, approach="raise", span=_round(low - deep))
        firm = Action(temperature=0.3, approach="lower", top_p=1.0, hold=3)
        high_rule = HighRule(threshold=_round(high), action=firm)
        jerk = np.abs(jerks(score, baseline.sequence)) / spread
        shock_rule = None
        if len(jerk):  # no answer of four tokens, no jerk
            shock_rule = ShockRule(
                threshold=_round(np.quantile(jerk, SHOCK_QUANTILE)),
                unit=_round(spread),
                smoothing=SMOOTHING,
                action=Action(temperature=0.5, approach="lower", top_p=1.0),
            )
    return Profile(
        name=name,
        description=_DESCRIPTIONS[kind],
        model=model,
        probe=Probe(layers=fit.layers),
        recipe=fit.recipe,
        high=high_rule,
        low=LowRule(threshold=_round(low), action=low_action),
        shock=shock_rule,
        provenance=Provenance(
            data=corpus.name,
            data_sha256=corpus.sha256,
            prompts=len(corpus.items),
            tokens=len(score),
            dtype=dtype,
            correlation=_round(fit.correlation),
            correlation_all_layers=_round(fit.correlation_all),
            score_std=_round(spread),
            score_quantiles=_quantiles(score),
            kurtosis_quantiles=_quantiles(baseline.kurtosis),
            surefoot=surefoot.__version__,
        ),
    )


def jerks(score: Array, sequence: Array, smoothing: float = SMOOTHING) -> Array:
    """Third differences of the smoothed score within each sequence, as the controller computes them."""
    out = []
    for start, stop in _runs(sequence):
        smooth = np.empty(stop - start)
        for i in range(start, stop):
            previous = smooth[i - start - 1] if i > start else score[i]
            smooth[i - start] = previous + smoothing * (score[i] - previous)
        out.append(np.diff(smooth, n=3))
    return np.concatenate(out)


def _runs(sequence: Array) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(sequence)) + 1
    bounds = [0, *edges.tolist(), len(sequence)]
    return list(pairwise(bounds))


def _quantiles(values: Array) -> dict[str, float]:
    return {f"{q:g}": _round(np.quantile(values, q)) for q in (0.01, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.99)}


def _round(value: float) -> float:
    return float(f"{value:.5g}")
