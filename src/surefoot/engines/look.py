"""A look: the keys that some layers of one forward pass see alike, measured layer by layer and reduced together."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.engines.hook import implementation_of
from surefoot.errors import ModelError
from surefoot.signals import AttentionStatistics, KeySample, attention_statistics

_sample = lru_cache(maxsize=4096)(KeySample.of)


def looks_like(query: Tensor, key: Tensor, mask: Any, kwargs: dict[str, Any]) -> Hashable:
    """What two layers of one forward pass must share to be measured together."""
    get = kwargs.get
    return query.shape, key.shape, id(mask), get("sliding_window"), get("scaling"), get("softcap")


class Look:
    """Some layers that see the same keys.

    Parameters
    ----------
    layers : int
        How many may be added.
    module, query, key, mask, kwargs
        The first of their calls, as the attention interface gives them: query ``(B, H, Tq, D)``, key
        ``(B, Hkv, Tk, D)``.
    max_keys : int or None
        `KeySample.of`.
    every_position : bool
        Measure each query of one sequence, as a row of its own, rather than the last query of each row.
    """

    def __init__(
        self,
        layers: int,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        mask: Any,
        kwargs: dict[str, Any],
        *,
        max_keys: int | None,
        every_position: bool,
    ) -> None:
        if mask is not None and not isinstance(mask, Tensor):
            raise ModelError(
                f"attention implementation '{implementation_of(module)}' hides its mask from surefoot.",
                "Load the model with attn_implementation='sdpa', 'eager' or a flash attention.",
            )
        self.members: list[int] = []
        self._mask = mask  # kept, so that its id stays its own
        batch, heads, length, width = query.shape
        key_heads, first, last = key.shape[1], 0, key.shape[2]
        if length > 1 and mask is None:
            last = length  # prefill of an empty static cache: what is behind has not been written
        window = kwargs.get("sliding_window")
        self._window = window if window and "flash" in implementation_of(module) else None  # the others have it masked
        if self._window and last > self._window and not every_position:
            first = last - self._window
        self._range = None if (first, last) == (0, key.shape[2]) else slice(first, last)
        n = last - first
        self._every_position = every_position
        self._rows = length if every_position else batch
        self._shape = (self._rows, key_heads, heads // key_heads)
        self._flat = (batch * key_heads, heads // key_heads, width)
        self._sample = _sample(n, max_keys)
        scaling = kwargs.get("scaling")
        self._scaling = float(width**-0.5 if scaling is None else scaling)
        self._softcap = kwargs.get("softcap")
        self._weights = None
        if mask is not None or not self._sample.exact or every_position:
            self._weights = self._visible(mask, n, query.device)
        # One buffer for all layers: they need not be copied together in the end.
        size = self._sample.size
        self._dots = torch.empty(layers, *self._shape, size, device=query.device)
        self._norms = torch.empty(layers, self._rows, key_heads, size, device=query.device)
        self._each = [*zip(self._dots.flatten(1, 2).unbind(0), self._norms.flatten(1, 2).unbind(0), strict=True)]
        self._queries: list[Tensor] = []

    def add(self, layer: int, query: Tensor, key: Tensor) -> None:
        """Measure one layer, whose number is ``layer``."""
        if len(self.members) == len(self._each):
            raise ModelError(
                "the model's layers attend more than once in a forward pass, and surefoot cannot tell which is meant.",
                "Models of this kind cannot be observed.",
            )
        dots, norms = self._each[len(self.members)]
        self.members.append(layer)
        key = key if self._range is None else key[:, :, self._range]
        keys = self._sample.take(key, 2).float().flatten(0, 1)
        if self._every_position:
            q = query[0].float().transpose(0, 1).unflatten(1, self._shape[1:])  # (T, Hkv, G, D)
            dots.copy_(torch.einsum("thgd,hnd->thgn", q, keys).flatten(0, 1))
            norms.copy_(torch.linalg.vector_norm(keys, dim=-1).repeat(self._rows, 1))
        else:
            q = (query if query.shape[2] == 1 else query[:, :, -1]).float().reshape(self._flat)
            torch.bmm(q, keys.transpose(1, 2), out=dots)
            torch.linalg.vector_norm(keys, dim=-1, out=norms)
        self._queries.append(q)

    def statistics(self, wanted: frozenset[str], min_keys: int) -> AttentionStatistics:
        """`attention_statistics` of the layers added, in that order."""
        count = len(self.members)
        return attention_statistics(
            self._dots[:count],
            torch.linalg.vector_norm(torch.stack(self._queries), dim=-1).view(count, *self._shape),
            self._norms[:count],
            wanted=wanted,
            scaling=self._scaling,
            softcap=self._softcap,
            weights=self._weights,
            min_keys=min_keys,
        )

    def _visible(self, mask: Tensor | None, n: int, device: torch.device) -> Tensor:
        """``(rows, N)``: how many keys each key read stands for, 0 where it is not visible."""
        rows = self._rows
        if mask is None:
            seen = torch.ones(rows, n, device=device)
            if self._every_position:
                seen = seen.tril(n - rows)
                seen = seen.triu(n - rows - self._window + 1) if self._window else seen
        elif mask.dim() == 2:
            seen = mask[:, -n:].float()
        else:
            part = mask[0, 0] if self._every_position else mask[:, 0, -1]
            part = part[..., :n]
            # An additive mask may also carry position biases; only what it all but excludes is invisible.
            seen = (part if part.dtype == torch.bool else part > torch.finfo(part.dtype).min / 2).float()
        weights = self._sample.take(seen)
        return weights if self._sample.exact else weights * self._sample.weight_vector(device)
