"""Everything measured in one decoding step, for a batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from surefoot.signals.attention import AttentionStatistics
from surefoot.signals.logits import LogitStatistics


@dataclass(frozen=True, slots=True)
class Signals:
    """One step of a batch, on the model's device, float32.

    Attributes
    ----------
    attention : AttentionStatistics
        Per probed layer and head, each ``(B, L, H)``.
    logits : LogitStatistics
        Each ``(B,)``.
    consistency : Tensor or None
        ``(B,)`` agreement of adjacent blocks; None when the profile does not ask for it.
    """

    attention: AttentionStatistics
    logits: LogitStatistics
    consistency: Tensor | None = None

    @property
    def kurtosis(self) -> Tensor:
        """``(B,)``: kurtosis averaged over probed layers and heads (the article's K); NaN where undefined."""
        return self.attention.kurtosis.mean((1, 2))

    @property
    def std(self) -> Tensor:
        """``(B,)``: standard deviation of cos(q, k), averaged over probed layers and heads."""
        return self.attention.std.mean((1, 2))
