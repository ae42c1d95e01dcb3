"""Which model this is, and whether a profile was made for it."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from surefoot.control import Profile
from surefoot.errors import ProfileWarning


def identity(model: Any) -> str:
    """Name and shape of a Transformers model: the last part of its name or path, and what its weights must look like.

    The shape keeps two different models in folders of the same name apart.
    """
    config = model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    name = PurePath(str(getattr(config, "_name_or_path", "") or "unnamed")).name
    shape = (
        f"{getattr(text, 'num_hidden_layers', '?')}x{getattr(text, 'num_attention_heads', '?')}"
        f"x{getattr(text, 'hidden_size', '?')}"
    )
    return f"{name} ({config.model_type} {shape})"


def check_profile(profile: Profile, model: Any) -> list[ProfileWarning]:
    """What a user should know before running ``profile`` on ``model``; empty when it was calibrated there."""
    name = identity(model)
    if profile.model is not None and profile.model != name:
        return [
            ProfileWarning(
                f"profile '{profile.name}' was calibrated on {profile.model} and this is {name}: its thresholds mean "
                "nothing here. Make a profile for this model with `surefoot calibrate --model ...`."
            )
        ]
    dtype = str(model.dtype).removeprefix("torch.")
    if profile.provenance is not None and profile.provenance.dtype != dtype:
        return [
            ProfileWarning(
                f"profile '{profile.name}' was calibrated in {profile.provenance.dtype} and the model runs in {dtype}; "
                "quantiles may differ. Calibrate again in this dtype if you depend on them."
            )
        ]
    return []
