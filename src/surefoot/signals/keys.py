"""Which keys a query looks at: all of them, or a systematic sample whose cost does not grow with the context."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Where attention's outliers live: the first keys (attention sinks) and the most recent ones (local heads). A sampled
# outlier would stand for `stride` keys and own the fourth moment, so these are always read, each counting once.
EXACT_FIRST = 4
EXACT_LAST = 60


@dataclass(frozen=True, slots=True)
class KeySample:
    """Strided views over the key axis, and how many keys each key read stands for.

    Attributes
    ----------
    slices : tuple of slice
        Views over the key axis, in order; together they read ``size`` keys.
    weights : tuple of float
        For each slice, the number of keys that one key of it stands for.
    """

    slices: tuple[slice, ...]
    weights: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def exact(self) -> bool:
        """Whether every key is read."""
        return len(self.slices) == 1

    @classmethod
    def of(cls, n_keys: int, max_keys: int | None) -> KeySample:
        """At most ``max_keys`` of ``n_keys`` keys; all of them when ``max_keys`` is None or large enough.

        The sample is systematic with a fixed start, so consecutive steps read the same keys and the same input always
        gives the same numbers. The standard error of a head's kurtosis is about ``sqrt(24 / max_keys)``.
        """
        if max_keys is None or n_keys <= max_keys:
            return cls((slice(0, n_keys),), (1.0,), (n_keys,))
        middle = n_keys - EXACT_FIRST - EXACT_LAST
        stride = -(-middle // (max_keys - EXACT_FIRST - EXACT_LAST))
        start = EXACT_FIRST + stride // 2
        stop = n_keys - EXACT_LAST
        read = len(range(start, stop, stride))
        return cls(
            (slice(0, EXACT_FIRST), slice(start, stop, stride), slice(stop, n_keys)),
            (1.0, middle / read, 1.0),
            (EXACT_FIRST, read, EXACT_LAST),
        )

    @property
    def size(self) -> int:
        """How many keys are read."""
        return sum(self.lengths)

    def take(self, x: Tensor, dim: int = -1) -> Tensor:
        """The sampled entries of ``x`` along ``dim`` (a view when exact)."""
        if self.exact:
            return x
        index: list[slice] = [slice(None)] * x.dim()
        parts = []
        for piece in self.slices:
            index[dim] = piece
            parts.append(x[tuple(index)])
        return torch.cat(parts, dim)

    def weight_vector(self, device: torch.device) -> Tensor:
        """``(size,)`` float32: how many keys each key read stands for."""
        return torch.cat([torch.full((n,), w, device=device) for n, w in zip(self.lengths, self.weights, strict=True)])
