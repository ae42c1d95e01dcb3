"""The probe: collects what the observed layers of one forward pass say, and turns it into `Signals`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from surefoot.control import Profile
from surefoot.engines.hook import implementation_of, observing
from surefoot.errors import ModelError, ProfileError
from surefoot.signals import (
    AttentionStatistics,
    KeySample,
    Signals,
    attention_statistics,
    block_consistency,
    logit_statistics,
)

_sample = lru_cache(maxsize=4096)(KeySample.of)


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder self-attention layer of a model."""

    name: str
    attention: nn.Module
    block: nn.Module


class _Seen(NamedTuple):
    """What one layer showed: see `attention_statistics` for the shapes, without the leading L."""

    dots: Tensor
    key_norms: Tensor
    query: Tensor
    weights: Tensor | None
    scaling: float
    softcap: float | None

    def looks_like(self, other: _Seen) -> bool:
        """Whether both can be reduced in one go."""
        return (
            self.dots.shape == other.dots.shape
            and self.weights is other.weights
            and self.scaling == other.scaling
            and self.softcap == other.softcap
            and self.query.shape == other.query.shape
        )


def find_layers(model: nn.Module) -> list[Layer]:
    """The decoder self-attention layers of ``model`` in order; `ModelError` when it has none that can be observed."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ModelError(
            f"{type(model).__name__} is an encoder-decoder model, and surefoot observes decoder-only models.",
            "Use a causal language model (AutoModelForCausalLM).",
        )
    found = []
    for name, module in model.named_modules():
        is_attention = "Attention" in type(module).__name__ and isinstance(getattr(module, "layer_idx", None), int)
        if is_attention and getattr(module, "is_causal", True) and not getattr(module, "is_cross_attention", False):
            found.append(Layer(name, module, model.get_submodule(name.rpartition(".")[0])))
    if not found:
        raise ModelError(
            f"{type(model).__name__} has no attention layer that surefoot can observe.",
            "Supported are decoder-only models on Transformers' attention interface; a model whose layers are all "
            "linear attention, or that brings its own attention code, is not.",
        )
    return found


class Probe:
    """Watches the layers a profile asks for.

    Parameters
    ----------
    model : nn.Module
        A Transformers causal language model.
    profile : Profile
        Which layers, how many keys, which statistics; whether blocks are compared.
    every_position : bool
        Measure each position of a prompt (one sequence, for calibration on text) instead of the last one only. A row
        of the signals is then a position.
    all_of_logits : bool
        Also measure what the state machine does not read (`logit_statistics`).
    """

    def __init__(
        self, model: nn.Module, profile: Profile, *, every_position: bool = False, all_of_logits: bool = False
    ) -> None:
        layers = find_layers(model)
        wanted = profile.probe.layers
        indices = range(len(layers)) if wanted == "all" else wanted
        if max(indices) >= len(layers):
            raise ProfileError(
                f"profile '{profile.name}' reads attention layer {max(indices)}, and this model has {len(layers)} "
                f"(0 to {len(layers) - 1}).",
                "It was calibrated on another model. Make one for this model with `surefoot calibrate`.",
            )
        self.profile = profile
        self._layers = [layers[i] for i in indices]
        heads = getattr(getattr(self._layers[0].attention, "config", None), "num_attention_heads", None)
        expected = len(profile.recipe.weights) / (len(self._layers) * len(profile.recipe.statistics))
        if profile.recipe.kind == "linear" and heads is not None and expected != heads:
            raise ProfileError(
                f"profile '{profile.name}' weighs {expected:g} heads a layer, and this model has {heads}.",
                "It was calibrated on another model. Make one for this model with `surefoot calibrate`.",
            )
        self._index = {id(layer.attention): i for i, layer in enumerate(self._layers)}
        self._blocks = [layer.block for layer in layers] if profile.consistency else []
        self._every_position, self._all_of_logits = every_position, all_of_logits
        self._seen: list[_Seen | None] = [None] * len(self._layers)
        self._done: list[AttentionStatistics | None] = [None] * len(self._layers)
        self._hidden: list[Tensor | None] = [None] * len(self._blocks)
        self._weights: dict[tuple[int, int], Tensor] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe every forward pass made while the context is open."""
        with ExitStack() as stack:
            stack.enter_context(observing([layer.attention for layer in self._layers], self))
            for i, block in enumerate(self._blocks):
                stack.callback(block.register_forward_hook(self._block_hook(i)).remove)
            yield

    def _block_hook(self, i: int) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            self._hidden[i] = hidden[0] if self._every_position else hidden[:, -1]

        return hook

    def observe(self, module: nn.Module, query: Tensor, key: Tensor, mask: Any, kwargs: dict[str, Any]) -> None:
        """Take what one layer shows (called by the hook, before the layer attends)."""
        i = self._index[id(module)]
        if i == 0:
            self._weights.clear()  # a new forward pass; ids of its masks may be those of old ones
        seen = self._see(module, query, key, mask, kwargs)
        if self._every_position:
            # A row a position is too large to keep for all layers: reduce it at once.
            self._done[i] = self._statistics([seen])
        else:
            self._seen[i] = seen

    def _see(self, module: nn.Module, query: Tensor, key: Tensor, mask: Any, kwargs: dict[str, Any]) -> _Seen:
        length = query.shape[2]
        if length > 1 and mask is None and key.shape[2] > length:
            key = key[:, :, :length]  # prefill of an empty static cache: what is behind has not been written
        if mask is not None and not isinstance(mask, Tensor):
            raise ModelError(
                f"attention implementation '{implementation_of(module)}' hides its mask from surefoot.",
                "Load the model with attn_implementation='sdpa', 'eager' or a flash attention.",
            )
        window = kwargs.get("sliding_window")
        if window and key.shape[2] > window and "flash" in implementation_of(module):
            key = key[:, :, -window:]  # the others are told by the mask
            mask = None if mask is None else mask[:, -window:]
        n = key.shape[2]
        sample = _sample(n, self.profile.probe.max_keys)
        keys = sample.take(key, 2).float()
        scaling = kwargs.get("scaling")
        scaling = float(query.shape[-1] ** -0.5 if scaling is None else scaling)
        softcap = kwargs.get("softcap")
        b, h, _, d = query.shape
        groups = h // key.shape[1]
        if self._every_position:
            q = query[0].float().transpose(0, 1).unflatten(1, (-1, groups))  # (Tq, Hkv, G, D)
            dots = torch.einsum("thgd,hnd->thgn", q, keys[0])
            norms = torch.linalg.vector_norm(keys, dim=-1).expand(length, -1, -1)
            weights = self._visible(mask, sample, n, length, query.device)
            return _Seen(dots, norms, q, weights, scaling, softcap)
        q = query[:, :, -1].float().view(b, -1, groups, d)
        dots = torch.matmul(q, keys.transpose(-1, -2))
        partial = mask is not None or not sample.exact
        seen = self._visible(mask, sample, n, 1, query.device) if partial else None
        return _Seen(dots, torch.linalg.vector_norm(keys, dim=-1), q, seen, scaling, softcap)

    def _visible(self, mask: Tensor | None, sample: KeySample, n: int, rows: int, device: torch.device) -> Tensor:
        """``(B or rows, N)``: how many keys each key read stands for, 0 where it is not visible."""
        known = self._weights.get((id(mask), n))
        if known is not None:
            return known
        if mask is None:
            seen = torch.ones(rows, n, device=device)
            seen = seen.tril(n - rows) if rows > 1 else seen
        elif mask.dim() == 2:
            seen = mask[:, -n:].float()
        else:
            part = mask[0, 0] if rows > 1 else mask[:, 0, -1]
            part = part[..., :n]
            # An additive mask may also carry position biases; only what it all but excludes is invisible.
            seen = (part if part.dtype == torch.bool else part > torch.finfo(part.dtype).min / 2).float()
        weights = sample.take(seen)
        if not sample.exact:
            weights = weights * sample.weight_vector(device)
        self._weights[(id(mask), n)] = weights
        return weights

    def signals(self, logits: Tensor) -> Signals:
        """Signals of the last forward pass.

        Parameters
        ----------
        logits : Tensor
            ``(B, V)`` of the position that was observed (``(T, V)`` with every position).
        """
        results = self._done if self._every_position else self._seen
        missing = [layer.name for layer, r in zip(self._layers, results, strict=True) if r is None]
        if missing:
            raise ModelError(
                f"attention layer '{missing[0]}' ({type(self._layers[0].attention).__name__}) never came by "
                "Transformers' attention interface, so it cannot be observed.",
                "The model brings its own attention code; surefoot supports models that use the interface.",
            )
        attention = _concatenate(self._done) if self._every_position else self._grouped()
        consistency = None
        if self._blocks:
            consistency = block_consistency(torch.stack(self._hidden))  # type: ignore[arg-type]
        signals = Signals(attention, logit_statistics(logits, everything=self._all_of_logits), consistency)
        self._seen = [None] * len(self._layers)
        self._done = [None] * len(self._layers)
        return signals

    def _grouped(self) -> AttentionStatistics:
        """Statistics of all layers, computed together for layers that look at equally many keys."""
        first = self._seen[0]
        assert first is not None
        if all(s is not None and s.looks_like(first) for s in self._seen):
            return self._statistics(self._seen)
        groups: dict[Any, list[int]] = {}
        for i, seen in enumerate(self._seen):
            assert seen is not None
            key = (seen.dots.shape, id(seen.weights), seen.scaling, seen.softcap, seen.query.shape[-1])
            groups.setdefault(key, []).append(i)
        parts: list[AttentionStatistics | None] = [None] * len(self._seen)
        for members in groups.values():
            together = self._statistics([self._seen[i] for i in members])
            for j, i in enumerate(members):
                parts[i] = _select(together, j)
        heads = {p.kurtosis.shape[2] for p in parts if p is not None}
        if len(heads) > 1:
            raise ModelError(
                f"the probed layers have different numbers of query heads ({', '.join(map(str, sorted(heads)))}).",
                "Probe layers with equally many heads (profile field probe.layers).",
            )
        return _concatenate(parts)

    def _statistics(self, seen: list[_Seen | None] | list[_Seen]) -> AttentionStatistics:
        layers = [s for s in seen if s is not None]
        first = layers[0]
        return attention_statistics(
            torch.stack([s.dots for s in layers]),
            torch.linalg.vector_norm(torch.stack([s.query for s in layers]), dim=-1),
            torch.stack([s.key_norms for s in layers]),
            wanted=self.profile.statistics,
            scaling=first.scaling,
            softcap=first.softcap,
            weights=first.weights,
            min_keys=self.profile.probe.min_keys,
        )


def _fields(of: AttentionStatistics) -> list[str]:
    return [name for name in AttentionStatistics.__dataclass_fields__ if getattr(of, name) is not None]


def _select(statistics: AttentionStatistics, layer: int) -> AttentionStatistics:
    return AttentionStatistics(**{n: getattr(statistics, n)[:, layer : layer + 1] for n in _fields(statistics)})


def _concatenate(parts: list[AttentionStatistics | None]) -> AttentionStatistics:
    known = [p for p in parts if p is not None]
    return AttentionStatistics(**{n: torch.cat([getattr(p, n) for p in known], 1) for n in _fields(known[0])})
