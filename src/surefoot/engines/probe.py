"""The probe: collects what the observed layers of one forward pass say, and turns it into `Signals`."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.control import Profile
from surefoot.engines.hook import observing
from surefoot.engines.look import Look, looks_like
from surefoot.errors import ModelError, ProfileError
from surefoot.signals import AttentionStatistics, Signals, block_consistency, logit_statistics


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder self-attention layer of a model."""

    name: str
    attention: nn.Module
    block: nn.Module


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
    fail_late : bool
        Let the forward pass end when observing it fails, and raise in `signals`.
    """

    def __init__(
        self,
        model: nn.Module,
        profile: Profile,
        *,
        every_position: bool = False,
        all_of_logits: bool = False,
        fail_late: bool = False,
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
        self._every_position, self._all_of_logits, self._fail_late = every_position, all_of_logits, fail_late
        self._failure: Exception | None = None
        self._thread = 0
        self._looks: dict[Hashable, Look] = {}
        self._parts: list[tuple[list[int], AttentionStatistics]] = []
        self._wanted = profile.statistics
        self._hidden: list[Tensor | None] = [None] * len(self._blocks)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe every forward pass made while the context is open."""
        self._thread = threading.get_ident()
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
        if threading.get_ident() != self._thread:
            return  # somebody else uses the model meanwhile
        try:
            self._observe(module, query, key, mask, kwargs)
        except Exception as error:
            if not self._fail_late:
                raise
            self._failure = error

    def _observe(self, module: nn.Module, query: Tensor, key: Tensor, mask: Any, kwargs: dict[str, Any]) -> None:
        i = self._index[id(module)]
        if i == 0:
            # A new forward pass: ids of its masks may be those of old ones.
            self._looks.clear()
            self._parts.clear()
        like = looks_like(query, key, mask, kwargs)
        look = self._looks.get(like)
        if look is None:
            look = Look(
                1 if self._every_position else len(self._layers),
                *(module, query, key, mask, kwargs),
                max_keys=self.profile.probe.max_keys,
                every_position=self._every_position,
            )
            self._looks[like] = look
        look.add(i, query, key)
        if self._every_position:
            self._reduce()  # a row a position is too large to keep for all layers

    def _reduce(self) -> None:
        """Replace what the layers showed by its statistics."""
        for look in self._looks.values():
            self._parts.append((look.members, look.statistics(self._wanted, self.profile.probe.min_keys)))
        self._looks.clear()

    def signals(self, logits: Tensor) -> Signals:
        """Signals of the last forward pass.

        Parameters
        ----------
        logits : Tensor
            ``(B, V)`` of the position that was observed (``(T, V)`` with every position).
        """
        if self._failure is not None:
            raise self._failure
        self._reduce()
        parts, self._parts = self._parts, []
        attention = self._in_order(parts)
        if attention.kurtosis.shape[0] != logits.shape[0]:
            raise ModelError(
                f"the last forward pass had {attention.kurtosis.shape[0]} rows, these logits have {logits.shape[0]}.",
                "Something else runs the model inside generate (a logits processor?); surefoot cannot observe that.",
            )
        consistency = None
        if self._blocks:
            consistency = block_consistency(torch.stack(self._hidden))  # type: ignore[arg-type]
        return Signals(attention, logit_statistics(logits, everything=self._all_of_logits), consistency)

    def _in_order(self, parts: list[tuple[list[int], AttentionStatistics]]) -> AttentionStatistics:
        """The statistics of all layers, in the order of the layers."""
        if len(parts) == 1 and len(parts[0][0]) == len(self._layers):
            return parts[0][1]
        layers = {i: _select(part, j) for members, part in parts for j, i in enumerate(members)}
        for i, layer in enumerate(self._layers):
            if i not in layers:
                raise ModelError(
                    f"attention layer '{layer.name}' ({type(layer.attention).__name__}) never came by "
                    "Transformers' attention interface, so it cannot be observed.",
                    "The model brings its own attention code; surefoot supports models that use the interface.",
                )
        heads = sorted({layer.kurtosis.shape[2] for layer in layers.values()})
        if len(heads) > 1:
            raise ModelError(
                f"the probed layers have different numbers of query heads ({', '.join(map(str, heads))}).",
                "Probe layers with equally many heads (profile field probe.layers).",
            )
        return _concatenate([layers[i] for i in range(len(layers))])


def _fields(of: AttentionStatistics) -> list[str]:
    return [name for name in AttentionStatistics.__dataclass_fields__ if getattr(of, name) is not None]


def _select(statistics: AttentionStatistics, layer: int) -> AttentionStatistics:
    return AttentionStatistics(**{n: getattr(statistics, n)[:, layer : layer + 1] for n in _fields(statistics)})


def _concatenate(parts: list[AttentionStatistics]) -> AttentionStatistics:
    return AttentionStatistics(**{n: torch.cat([getattr(p, n) for p in parts], 1) for n in _fields(parts[0])})
