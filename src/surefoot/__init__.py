"""surefoot: sure-footed decoding for open-weight language models.

It watches what a model's own attention and logits say while it decodes, steadies the sampling token by token, and can
stop when the footing is bad. See `attach` for use inside ``model.generate``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefoot.control import Controller, Profile, Trace, load_profile
    from surefoot.engines.attach import Footing, attach
    from surefoot.ssp import with_ssp

__version__ = "0.1.0"

# Loaded on first use: `import surefoot` and `surefoot --help` stay fast.
_HOMES = {
    "attach": "surefoot.engines.attach",
    "Footing": "surefoot.engines.attach",
    "Controller": "surefoot.control",
    "Profile": "surefoot.control",
    "Trace": "surefoot.control",
    "load_profile": "surefoot.control",
    "with_ssp": "surefoot.ssp",
}

__all__ = ["Controller", "Footing", "Profile", "Trace", "__version__", "attach", "load_profile", "with_ssp"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'surefoot' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
