"""Seeing attention in any model that uses Transformers' attention interface.

The library special-cases the *names* of attention implementations (masks, caches, several models), so we keep the name
and wrap the function behind it, for as long as somebody watches. Which calls are observed is decided by an attribute of
the attention module, so other models in the process are served as before.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_ATTRIBUTE = "_surefoot_observer"
_lock = threading.Lock()
_watchers: dict[str, int] = {}
_originals: dict[str, Callable[..., Any] | None] = {}


class Observer(Protocol):
    """What is called before an observed module attends."""

    def observe(self, module: nn.Module, query: Tensor, key: Tensor, mask: Any, kwargs: dict[str, Any]) -> None:
        """See one call: query ``(B, H, Tq, D)``, key ``(B, Hkv, Tk, D)``, and the implementation's mask."""
        ...


@contextmanager
def observing(modules: Iterable[nn.Module], observer: Observer) -> Iterator[None]:
    """Show ``observer`` every attention call of ``modules`` while the context is open."""
    modules = list(modules)
    names = {implementation_of(m) for m in modules}
    with _lock:
        for name in names:
            _install(name)
    for m in modules:
        m.__dict__[_ATTRIBUTE] = observer
    try:
        yield
    finally:
        for m in modules:
            m.__dict__.pop(_ATTRIBUTE, None)
        with _lock:
            for name in names:
                _remove(name)


def implementation_of(module: nn.Module) -> str:
    """The name of the attention implementation that ``module`` is set to use."""
    return str(getattr(getattr(module, "config", None), "_attn_implementation", None) or "eager")


def _install(name: str) -> None:
    _watchers[name] = _watchers.get(name, 0) + 1
    if _watchers[name] > 1:
        return
    local = ALL_ATTENTION_FUNCTIONS._local_mapping
    _originals[name] = local.get(name)
    original = ALL_ATTENTION_FUNCTIONS.get(name)

    def observed(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        observer: Observer | None = module.__dict__.get(_ATTRIBUTE)
        if observer is not None:
            observer.observe(module, query, key, attention_mask, kwargs)
        attend = original or _eager(module)
        return attend(module, query, key, value, attention_mask, *args, **kwargs)

    ALL_ATTENTION_FUNCTIONS[name] = observed


def _remove(name: str) -> None:
    _watchers[name] -= 1
    if _watchers[name] == 0:
        del _watchers[name], ALL_ATTENTION_FUNCTIONS[name]
        original = _originals.pop(name)
        if original is not None:
            ALL_ATTENTION_FUNCTIONS[name] = original


def _eager(module: nn.Module) -> Callable[..., Any]:
    """The model file's own eager attention: it is a default argument there, not an entry of the interface."""
    for cls in type(module).__mro__:
        found: Callable[..., Any] | None = getattr(sys.modules[cls.__module__], "eager_attention_forward", None)
        if found is not None:
            return found
    raise RuntimeError(f"{type(module).__name__} has no eager attention that surefoot can find")
