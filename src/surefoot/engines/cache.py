"""A key/value cache that grows in place.

Transformers' dynamic cache copies all keys and values for every token. Here each layer has room ahead and doubles it
when it is full, so a token costs one row.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

ROOM = 256


class GrowingLayer(DynamicLayer):
    """Keys and values ``(B, H, T, D)`` as views of larger buffers."""

    _key_room: Tensor | None = None
    _value_room: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append new states; returns all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        self._key_room = _with_room(self._key_room, key_states, start, end)
        self._value_room = _with_room(self._value_room, value_states, start, end)
        self.keys, self.values = self._key_room[:, :, :end], self._value_room[:, :, :end]
        return self.keys, self.values


def _with_room(room: Tensor | None, new: Tensor, start: int, end: int) -> Tensor:
    if room is None or end > room.shape[2]:
        larger = new.new_empty(*new.shape[:2], max(2 * end, end + ROOM) if start else end + ROOM, new.shape[3])
        if room is not None:
            larger[:, :, :start] = room[:, :, :start]
        room = larger
    room[:, :, start:end] = new
    return room


def growing_cache(config: Any) -> DynamicCache:
    """A cache for ``config``: growing where the layer attends to everything, the library's own layer elsewhere."""
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]  # type: ignore[no-untyped-call]
    return cache


def room_of(cache: DynamicCache) -> tuple[int, int]:
    """Tokens that the layers have room for, and tokens in them, each the sum over layers."""
    held = used = 0
    for layer in cache.layers:
        if getattr(layer, "is_initialized", False) and isinstance(layer, DynamicLayer):
            room = layer._key_room if isinstance(layer, GrowingLayer) else layer.keys
            held += room.shape[2] if room is not None else 0
            used += layer.get_seq_length()
    return held, used
