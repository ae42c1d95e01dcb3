"""Central moments in one mergeable struct.

Kept as (count, mean, M2, M3, M4) rather than raw power sums: with a standard deviation of 0.04 around a mean of 0.7,
raw fourth moments in float32 lose every digit to cancellation. The merge is exact, so the same struct serves split
key/value ranges, tensor-parallel ranks and sampled strata.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# A spread of a few rounding errors of the values themselves is a constant: its shape would be noise.
_CONSTANT = 8 * torch.finfo(torch.float32).eps


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and central sums of powers two to four, over the last axis of some values.

    Attributes
    ----------
    count : Tensor or float
        Number of values (or the sum of their weights, float32), broadcastable to ``mean``.
    mean, m2, m3, m4 : Tensor
        Mean, and the sums of ``(x - mean) ** p`` for p = 2, 3, 4; float32. ``m3`` is None where it was left out.

    References
    ----------
    P. Pébay, "Formulas for robust, one-pass parallel computation of covariances and arbitrary-order statistical
    moments", Sandia report SAND2008-6212, 2008.
    """

    count: Tensor | float
    mean: Tensor
    m2: Tensor
    m3: Tensor | None
    m4: Tensor

    @classmethod
    def of(cls, values: Tensor, weights: Tensor | None = None, *, third: bool = True) -> Moments:
        """Moments of ``values`` over their last axis.

        Parameters
        ----------
        values : Tensor
            ``(..., N)``, any float dtype; computed in float32.
        weights : Tensor, optional
            Broadcastable to ``values``; 0 leaves a value out, w counts it w times.
        third : bool
            False leaves out ``m3``, and with it skewness and `merge`: a pass that kurtosis does not need.
        """
        x = values.float()
        if weights is None:
            mean = x.mean(-1)
            d = x - mean.unsqueeze(-1)
            d2 = d * d
            m2 = d2.sum(-1)
            m3 = (d2 * d).sum(-1) if third else None
            return cls(float(x.shape[-1]), mean, m2, m3, d2.mul_(d2).sum(-1))
        w = weights.float()
        count = w.sum(-1)
        # Left-out values may be anything, even NaN (uninitialised cache): zero them before they meet a product.
        x = torch.where(w > 0, x, 0.0)
        mean = (x * w).sum(-1) / count
        d = torch.where(w > 0, x - mean.unsqueeze(-1), 0.0)
        d2 = d * d
        wd2 = d2 * w
        m2 = wd2.sum(-1)
        m3 = (wd2 * d).sum(-1) if third else None
        return cls(count, mean, m2, m3, wd2.mul_(d2).sum(-1))

    def merge(self, other: Moments) -> Moments:
        """Moments of both sets together (Pébay 2008, equations 2.1 and 3.1), elementwise over the leading axes."""
        if self.m3 is None or other.m3 is None:
            raise ValueError("moments made with third=False cannot be merged")
        na, nb = (torch.as_tensor(m.count, device=m.mean.device) for m in (self, other))
        n = na + nb
        # An empty side has no mean; give it the other one's, so that it contributes nothing.
        mean_a = torch.where(na > 0, self.mean, other.mean)
        mean_b = torch.where(nb > 0, other.mean, self.mean)
        a2, a3, a4 = (torch.where(na > 0, m, 0.0) for m in (self.m2, self.m3, self.m4))
        b2, b3, b4 = (torch.where(nb > 0, m, 0.0) for m in (other.m2, other.m3, other.m4))
        fa, fb = na / n, nb / n
        d = mean_b - mean_a
        ab = na * fb
        return Moments(
            n,
            mean_a + d * fb,
            a2 + b2 + d**2 * ab,
            a3 + b3 + d**3 * ab * (fa - fb) + 3 * d * (fa * b2 - fb * a2),
            a4
            + b4
            + d**4 * ab * (fa * fa - fa * fb + fb * fb)
            + 6 * d**2 * (fa * fa * b2 + fb * fb * a2)
            + 4 * d * (fa * b3 - fb * a3),
        )

    @property
    def std(self) -> Tensor:
        """Population standard deviation."""
        return (self.m2 / self.count).sqrt()

    @property
    def kurtosis(self) -> Tensor:
        """Pearson kurtosis (normal = 3); NaN where the values are constant or there are none."""
        return self._shape(self.count * self.m4 / (self.m2 * self.m2))

    @property
    def skewness(self) -> Tensor:
        """Skewness; NaN where the values are constant or there are none."""
        if self.m3 is None:
            raise ValueError("moments made with third=False have no skewness")
        return self._shape(self.m3 / self.m2 * (self.count / self.m2).sqrt())

    def _shape(self, ratio: Tensor) -> Tensor:
        constant = self.m2 <= self.mean * self.mean * (self.count * _CONSTANT**2)
        return ratio.masked_fill(constant, torch.nan)
