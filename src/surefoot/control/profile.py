"""A profile: what a model's footing means, and what to do about it.

No absolute threshold transfers between models (docs/results.md), so a profile names the model it was calibrated on,
and stores thresholds as values together with where they came from.
"""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from surefoot.control.recipe import Recipe
from surefoot.control.rules import ConsistencyRule, Frozen, FuseRule, HighRule, LowRule, ShockRule
from surefoot.errors import ProfileError
from surefoot.signals import Statistic


class Probe(Frozen):
    """Where and how the model is measured."""

    layers: Literal["all"] | tuple[int, ...] = Field("all", description="Indices of the attention layers to read.")
    max_keys: int | None = Field(2048, ge=128, description="Read at most so many keys a head; null: all of them.")
    min_keys: int = Field(8, ge=2, description="With fewer visible keys the moments are undefined (state NEUTRAL).")

    @model_validator(mode="after")
    def _layers_in_order(self) -> Probe:
        if self.layers != "all" and (not self.layers or list(self.layers) != sorted(set(self.layers))):
            raise ValueError("layers must be 'all' or distinct indices in increasing order")
        if self.layers != "all" and self.layers[0] < 0:
            raise ValueError("layers count from 0 up")
        return self


class Provenance(Frozen):
    """Where the numbers of a calibrated profile came from."""

    data: str
    data_sha256: str
    prompts: int
    tokens: int
    dtype: str
    correlation: float = Field(description="Cross-validated R between the score and minus the next-token entropy.")
    correlation_all_layers: float
    score_std: float = Field(description="Spread of the score over the calibration tokens, nats.")
    score_quantiles: dict[str, float]
    kurtosis_quantiles: dict[str, float]
    surefoot: str


class Profile(Frozen):
    """Thresholds, actions and the determinacy recipe for one model (or, with `model` null, for any)."""

    schema_version: Literal[1] = 1
    name: str = Field(min_length=1, max_length=100)
    version: int = Field(1, ge=1)
    description: str = ""
    model: str | None = Field(None, description="Identity of the model it was calibrated on; null: not calibrated.")
    probe: Probe = Probe()
    recipe: Recipe = Recipe(kind="mean_kurtosis")
    high: HighRule | None = None
    low: LowRule | None = None
    shock: ShockRule | None = None
    fuse: FuseRule | None = None
    consistency: ConsistencyRule | None = None
    provenance: Provenance | None = None

    @model_validator(mode="after")
    def _thresholds_in_order(self) -> Profile:
        if self.high and self.low and self.low.threshold >= self.high.threshold:
            raise ValueError(
                f"low.threshold ({self.low.threshold:g}) must be below high.threshold ({self.high.threshold:g})"
            )
        for name, rule in (("high", self.high), ("shock", self.shock)):
            if rule and rule.action.span is not None:
                raise ValueError(f"{name}.action.span: only the LOW state has a schedule")
        return self

    @property
    def statistics(self) -> frozenset[Statistic]:
        """The attention statistics the recipe reads."""
        return frozenset(self.recipe.statistics)

    @property
    def alters_top_p(self) -> bool:
        """Whether some state narrows top-p, so that the sampler needs a top-p stage even if the request has none."""
        rules = (self.high, self.low, self.shock)
        return any(r is not None and r.action.top_p is not None and r.action.top_p < 1 for r in rules)

    def dump(self) -> str:
        """The profile as JSON; nulls are kept, since null is a setting too, and lists of numbers stay on one line."""
        text = json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False)
        # A line break begins no bracket inside a string: JSON writes it as an escape there.
        return re.sub(r"\[\n[^\[\]{}]*\]", lambda found: " ".join(found[0].split()), text) + "\n"


def builtin_profiles() -> dict[str, Path]:
    """Names and files of the profiles that come with surefoot."""
    folder = Path(str(resources.files("surefoot") / "profiles"))
    return {path.stem: path for path in sorted(folder.glob("*.json"))}


def load_profile(source: str | Path) -> Profile:
    """A profile by name or from a JSON file.

    Parameters
    ----------
    source : str or Path
        The name of a built-in profile, or a path to a profile or to a tuner's ``claudetune.json``.

    Raises
    ------
    ProfileError
        Unknown name, unreadable file, malformed JSON, or a field out of its range (field, value and range are named).
    """
    known = builtin_profiles()
    path = known.get(str(source), Path(source))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a name that no file can have
        reason = "no such profile or file" if isinstance(error, FileNotFoundError) else str(error)
        raise ProfileError(
            f"profile '{source}': {reason}.",
            f"Built in: {', '.join(known)}. Or give the path of a JSON file; `surefoot calibrate` writes one.",
        ) from error
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"profile '{source}' is not valid JSON: {error}.") from error
    return parse_profile(data, str(source))


def parse_profile(data: Any, source: str = "profile") -> Profile:
    """A profile from decoded JSON; ``source`` names it in errors (`ProfileError`)."""
    if isinstance(data, dict) and "peak_kurtosis" in data:
        data = _from_tuner(data)
    try:
        return Profile.model_validate(data)
    except ValidationError as error:
        lines = [
            f"  {'.'.join(map(str, e['loc'])) or 'profile'}: {e['msg']} (got {_short(e['input'])})"
            for e in error.errors(include_url=False)
        ]
        raise ProfileError(
            f"profile '{source}' is not usable:\n" + "\n".join(lines), "See docs/profiles.md for every field."
        ) from error


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _from_tuner(data: dict[str, Any]) -> Any:
    """The article's ``claudetune.json`` (S4): three numbers that replace those of the profile ``article``."""
    base = load_profile("article").model_dump(mode="json", exclude_none=True)
    extra = set(data) - {"peak_kurtosis", "jerk_threshold", "temp_fallback", "domain"}
    if extra:
        return data  # an ordinary profile, or garbage: let the schema say which field is wrong
    base["name"] = f"tuned-{data['domain']}" if "domain" in data else "tuned"
    base["description"] = "The profile 'article' with the thresholds of a tuner run."
    base["high"]["threshold"] = data["peak_kurtosis"]
    if "jerk_threshold" in data:
        base["shock"]["threshold"] = data["jerk_threshold"]
    if "temp_fallback" in data:
        base["shock"]["action"]["temperature"] = data["temp_fallback"]
    return base
