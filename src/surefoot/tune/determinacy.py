"""Fitting a determinacy recipe: which layers to probe, and how to weigh their heads. Needs no labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from surefoot.control import Recipe
from surefoot.errors import InputError
from surefoot.tune.baseline import Array, Baseline

# Ridge penalties tried on all layers. A smaller probe set has fewer features to restrain, and gets its share.
PENALTIES = (10.0, 100.0, 1000.0, 3000.0)
FOLDS = 5
# A probe set this close to the correlation of all layers is as good, and cheaper.
TOLERANCE = 0.03
CLIP = 5.0
MIN_TOKENS = 500


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted recipe.

    Attributes
    ----------
    layers : tuple of int
        The probe set.
    recipe : Recipe
        Linear, over these layers.
    correlation, correlation_all : float
        Cross-validated Pearson R with minus the next-token entropy, for the probe set and for all layers.
    score : Array
        ``(N,)`` the recipe's score of every token of the baseline.
    """

    layers: tuple[int, ...]
    recipe: Recipe
    correlation: float
    correlation_all: float
    score: Array


def fit_determinacy(baseline: Baseline, progress: Callable[[str], None] = lambda step: None) -> Fit:
    """Fit minus the next-token entropy from the statistics of each head.

    Ridge regression, cross-validated over groups (no passage is on both sides). Layers are added one by one, each time
    the one that helps most, until the correlation is within `TOLERANCE` of that of all layers.

    Raises
    ------
    InputError
        Too few tokens or groups to cross-validate.
    """
    groups = len(np.unique(baseline.group))
    if len(baseline.entropy) < MIN_TOKENS or groups < FOLDS:
        raise InputError(
            f"{len(baseline.entropy)} tokens from {groups} independent items are too few to calibrate on.",
            f"Give at least {FOLDS} prompts or passages and {MIN_TOKENS} tokens; a few hundred prompts are better.",
        )
    if baseline.entropy.std() < 1e-6:
        raise InputError("the model's entropy never changes on this corpus, so there is nothing to fit.")
    problem = Regression(baseline)
    everything = tuple(range(problem.layers))
    best, penalty = max((problem.correlation(everything, p), p) for p in PENALTIES)
    chosen: tuple[int, ...] = ()
    reached = -1.0
    while reached < best - TOLERANCE and len(chosen) < problem.layers:
        candidates = [tuple(sorted((*chosen, layer))) for layer in everything if layer not in chosen]
        reached, chosen = max((problem.correlation(layers, penalty), layers) for layers in candidates)
        progress(f"{len(chosen)} layers chosen, R {reached:.3f} of {best:.3f}")
    columns = problem.columns(chosen)
    weights = problem.solve(columns, penalty)
    recipe = Recipe(
        kind="linear",
        statistics=baseline.statistics,
        weights=_rounded(weights),
        center=_rounded(problem.center[columns]),
        scale=_rounded(problem.scale[columns]),
        intercept=float(f"{problem.mean:.6g}"),
        clip=CLIP,
    )
    return Fit(chosen, recipe, reached, best, -(problem.z[:, columns] @ weights + problem.mean))


class Regression:
    """The regression, reduced to one Gram matrix a fold: hundreds of layer sets are then tried in seconds."""

    def __init__(self, baseline: Baseline) -> None:
        n, statistics, self.layers, heads = baseline.features.shape
        x = baseline.features.reshape(n, -1).astype(np.float64)
        self.center, self.scale = x.mean(0), np.maximum(x.std(0), 1e-6)
        self.z = np.clip((x - self.center) / self.scale, -CLIP, CLIP)
        self._y = baseline.entropy.astype(np.float64)
        self.mean = float(self._y.mean())
        # Feature numbers by layer, in the order of `recipe.features`: statistic, layer, head.
        self._by_layer = np.arange(x.shape[1]).reshape(statistics, self.layers, heads)
        # Groups follow each other by kind in most corpora; dealing them out spreads every kind over all folds.
        self._fold = np.unique(baseline.group, return_inverse=True)[1] % FOLDS
        self._gram = [self._products(self._fold != f) for f in range(FOLDS)]
        self._whole = self._products(slice(None))

    def _products(self, rows: Array | slice) -> tuple[Array, Array]:
        z = self.z[rows]
        return z.T @ z, z.T @ (self._y[rows] - self.mean)

    def columns(self, layers: tuple[int, ...]) -> Array:
        """Feature numbers of some layers."""
        return self._by_layer[:, list(layers)].reshape(-1)

    def solve(self, columns: Array, penalty: float, gram: tuple[Array, Array] | None = None) -> Array:
        """Ridge weights of some features; on all rows unless a fold's ``gram`` is given."""
        a, b = gram or self._whole
        share = penalty * len(columns) / self.z.shape[1]
        weights: Array = np.linalg.solve(a[np.ix_(columns, columns)] + share * np.eye(len(columns)), b[columns])
        return weights

    def correlation(self, layers: tuple[int, ...], penalty: float) -> float:
        """Pearson R between the entropy and its prediction from other folds."""
        columns = self.columns(layers)
        predicted = np.empty_like(self._y)
        for f, gram in enumerate(self._gram):
            held_out = self._fold == f
            predicted[held_out] = self.z[np.ix_(held_out, columns)] @ self.solve(columns, penalty, gram)
        return float(np.corrcoef(predicted, self._y)[0, 1])


def _rounded(values: Array) -> tuple[float, ...]:
    return tuple(float(f"{v:.6g}") for v in values)
