"""What the controller wants of the sampler, and what the sampler says it did."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

# Rows of `Overrides.packed`. FRESH: a rule asked for the state now; otherwise it is held from before.
TEMPERATURE, TOP_P, STATE, FRESH, SEQUENCE, STOP, RESAMPLE, SCORE, JERK, ENTROPY, KURTOSIS, STD, CONSISTENCY = range(13)
ROWS = 13


@dataclass(frozen=True, slots=True)
class Overrides:
    """Decision for one step of a batch.

    One packed tensor, so that a host which wants to know pays for one transfer.

    Attributes
    ----------
    packed : Tensor
        ``(ROWS, B)`` float32 on the controller's device. Besides the decision it carries the numbers the decision was
        made on, for the trace.
    """

    packed: Tensor

    @property
    def temperature(self) -> Tensor:
        """``(B,)``: what to divide the logits by; 0 means greedy."""
        return self.packed[TEMPERATURE]

    @property
    def top_p(self) -> Tensor:
        """``(B,)``; 1 is off."""
        return self.packed[TOP_P]

    @property
    def stop(self) -> Tensor:
        """``(B,)`` bool: the fuse has blown, end the answer behind this token."""
        return self.packed[STOP] > 0

    @property
    def resample(self) -> Tensor:
        """``(B,)`` bool: blocks disagree, draw a second time and take that."""
        return self.packed[RESAMPLE] > 0

    @property
    def sequence(self) -> Tensor:
        """``(B,)``: running number of this override within its request; 0 where nothing is overridden."""
        return self.packed[SEQUENCE]


@dataclass(frozen=True, slots=True)
class SamplerStep:
    """What the sampler really did in one step.

    Attributes
    ----------
    sequence : Tensor
        ``(B,)``: the `Overrides.sequence` that was in force when the token was drawn.
    """

    sequence: Tensor


@dataclass(frozen=True, slots=True)
class Ledger:
    """Overrides decided and applied, summed over requests (S5)."""

    decided: int
    applied: int

    @property
    def drop_rate(self) -> float:
        """Share of decided overrides that the sampler did not apply; 0 when none was decided."""
        return 1.0 - self.applied / self.decided if self.decided else 0.0
