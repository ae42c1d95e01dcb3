"""Determinacy: one score a token, made from statistics kept per head."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from surefoot.control.rules import Frozen
from surefoot.signals import AttentionStatistics, Statistic

# These are skewed over tokens; in the logarithm a linear fit does not chase the tail.
_LOGARITHMIC: frozenset[str] = frozenset({"kurtosis", "entropy", "previous", "sink"})
_FLOOR = 1e-4


def features(attention: AttentionStatistics, statistics: tuple[Statistic, ...]) -> Tensor:
    """The inputs of a linear recipe.

    Parameters
    ----------
    attention : AttentionStatistics
        Each ``(B, L, H)``.
    statistics : tuple of str
        Which, and in what order.

    Returns
    -------
    Tensor
        ``(B, S * L * H)`` float32, new, statistic by statistic; NaN where undefined.
    """
    columns = []
    for name in statistics:
        value = attention.get(name).flatten(1)
        if name in _LOGARITHMIC:
            # Kurtosis is never below 1; weights can vanish.
            value = value.log() if name == "kurtosis" else value.clamp(min=_FLOOR).log_()
        columns.append(value)
    return torch.cat(columns, 1)


class Recipe(Frozen):
    """How the determinacy score is made.

    ``mean_kurtosis`` is the article's: K averaged over everything probed. ``linear`` is minus the next-token entropy
    that a ridge regression predicts from the statistics of each head, in nats: high when the model is about to be sure.
    Each feature is limited to `clip` standard deviations around its mean on the calibration text, so that one odd head
    cannot take the score along.
    """

    kind: Literal["mean_kurtosis", "linear"]
    statistics: tuple[Statistic, ...] = Field(("kurtosis",), min_length=1)
    weights: tuple[float, ...] = ()
    center: tuple[float, ...] = ()
    scale: tuple[Annotated[float, Field(gt=0)], ...] = ()
    intercept: float = 0.0
    clip: float = Field(5.0, gt=0)

    @model_validator(mode="after")
    def _same_length(self) -> Recipe:
        if self.kind == "linear" and not 0 < len(self.weights) == len(self.center) == len(self.scale):
            raise ValueError(
                f"weights, center and scale need one number per feature, got {len(self.weights)}, "
                f"{len(self.center)} and {len(self.scale)}"
            )
        return self

    def compile(self, device: torch.device) -> Scorer:
        """The recipe with its numbers on ``device``."""
        return Scorer(self, device)


class Scorer:
    """A recipe ready to run in the step: one clamp and one dot product.

    Parameters
    ----------
    recipe : Recipe
    device : torch.device
    """

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe = recipe

        def tensor(x: Any) -> Tensor:
            return torch.as_tensor(x, dtype=torch.float32, device=device)

        # Standardising is folded into the weights, and the clip into bounds of the features themselves.
        center, scale, weights = (np.asarray(x) for x in (recipe.center, recipe.scale, recipe.weights))
        self._lowest = tensor(center - recipe.clip * scale)
        self._highest = tensor(center + recipe.clip * scale)
        self._weights = tensor(-weights / scale)
        self._intercept = tensor((weights / scale) @ center - recipe.intercept)

    def __call__(self, attention: AttentionStatistics, mean_kurtosis: Tensor) -> Tensor:
        """``(B,)`` determinacy; NaN where a statistic is undefined.

        Parameters
        ----------
        attention : AttentionStatistics
            Each ``(B, L, H)``.
        mean_kurtosis : Tensor
            ``(B,)``, `Signals.kurtosis`.
        """
        if self.recipe.kind == "mean_kurtosis":
            return mean_kurtosis
        x = features(attention, self.recipe.statistics)
        if x.shape[1] != self._weights.shape[0]:
            raise ValueError(
                f"the recipe has {self._weights.shape[0]} weights, and this model's probed layers give {x.shape[1]} "
                "features"
            )
        return torch.addmv(self._intercept, x.clamp_(self._lowest, self._highest), self._weights)
