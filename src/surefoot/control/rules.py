"""The rules of a profile: when a state is entered, and what it does then. Every number of S1 and S6 is a field here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Temperature = Annotated[float, Field(gt=0, le=5)]
TopP = Annotated[float, Field(gt=0, le=1)]


class Frozen(BaseModel):
    """Base of all settings: immutable, and strict about names so that a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Action(Frozen):
    """What a state does to the sampling of a token."""

    temperature: Temperature | None = Field(None, description="Where the temperature goes; null: the request's own.")
    approach: Literal["set", "raise", "lower"] = Field(
        "set", description="'raise' never cools a request and 'lower' never warms one; 'set' does either."
    )
    span: float | None = Field(
        None,
        gt=0,
        description="Dynamic temperature: distance below the LOW threshold, in units of the score, over which the "
        "temperature moves from the request's own to `temperature`; null: at once.",
    )
    top_p: TopP | None = Field(None, description="1 switches top-p off; null: the request's own.")
    hold: int = Field(1, ge=1, le=1000, description="For how many tokens, this one included.")


class HighRule(Frozen):
    """High determinacy (S1): score above `threshold` and spread of cos(q, k) below `std_below`."""

    threshold: float
    std_below: float | None = Field(None, gt=0)
    action: Action = Action()


class LowRule(Frozen):
    """Low determinacy (S1): score below `threshold`."""

    threshold: float
    action: Action = Action()


class ShockRule(Frozen):
    """Shock protection (S1): third difference of the smoothed score above `threshold` in absolute value."""

    threshold: float = Field(gt=0, description="In units of `unit`.")
    unit: float = Field(1.0, gt=0, description="The model's own spread of the score; 1: raw, as in the article.")
    smoothing: float = Field(1.0, gt=0, le=1, description="Weight of the newest score in the running mean; 1: none.")
    action: Action = Action()


class FuseRule(Frozen):
    """Semantic entropy fuse (S6.1): the entropies of `window` tokens spread less than `std_below` nats: stop."""

    window: int = Field(5, ge=2, le=64)
    std_below: float = Field(gt=0)


class ConsistencyRule(Frozen):
    """Cross-block consistency (S6.2): mean cosine of adjacent blocks below `threshold`: draw the token again."""

    threshold: float = Field(ge=-1, le=1)
