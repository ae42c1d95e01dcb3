"""The trace: what was measured and decided for every token of one answer."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from surefoot.control import overrides as row
from surefoot.control.profile import Profile
from surefoot.control.state import State
from surefoot.errors import InputError

TRACE_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """One token.

    Attributes
    ----------
    id, text
        The token that was drawn.
    kurtosis, std, entropy, determinacy : float or None
        Mean kurtosis and standard deviation of cos(q, k) over probed heads, entropy of the next-token distribution at
        temperature 1 in nats, and the profile's score; None where undefined.
    jerk, consistency : float or None
        Third difference of the smoothed score; agreement of adjacent blocks; None where not measured.
    state : str
        Name of a `State`.
    temperature, top_p : float
        What the token was drawn with; temperature 0 is greedy.
    reason : str
        Why, in words with the numbers compared; empty where nothing was out of the ordinary.
    sequence : int
        Running number of the override; 0 when the request's own settings were used.
    resampled : bool
        The token was drawn twice because blocks disagreed.
    """

    id: int
    text: str
    kurtosis: float | None
    std: float | None
    entropy: float | None
    determinacy: float | None
    jerk: float | None
    consistency: float | None
    state: str
    temperature: float
    top_p: float
    reason: str
    sequence: int
    resampled: bool
    latency_ms: float | None = None


@dataclass(slots=True)
class Trace:
    """All tokens of one answer, under the profile that decided them (None: nothing was measured)."""

    profile: Profile | None
    tokens: list[TokenTrace] = field(default_factory=list)

    def append(self, token_id: int, text: str, values: list[float], latency_ms: float | None = None) -> TokenTrace:
        """Add a token from one column of `Overrides.packed`."""
        token = TokenTrace(
            id=token_id,
            text=text,
            kurtosis=_number(values[row.KURTOSIS]),
            std=_number(values[row.STD]),
            entropy=_number(values[row.ENTROPY]),
            determinacy=_number(values[row.SCORE]),
            jerk=_number(values[row.JERK]),
            consistency=_number(values[row.CONSISTENCY]),
            state=State(int(values[row.STATE])).name,
            temperature=_number(values[row.TEMPERATURE]) or 0.0,
            top_p=_number(values[row.TOP_P]) or 0.0,
            reason=reason(self.profile, values) if self.profile else "",
            sequence=int(values[row.SEQUENCE]),
            resampled=values[row.RESAMPLE] > 0,
            latency_ms=latency_ms,
        )
        self.tokens.append(token)
        return token

    def summary(self) -> dict[str, Any]:
        """Counts of states, quantiles of K, determinacy and entropy, and how many tokens were overridden."""
        states = Counter(t.state for t in self.tokens)
        return {
            "tokens": len(self.tokens),
            "states": {s.name: states[s.name] for s in State},
            "overrides": sum(t.sequence > 0 for t in self.tokens),
            "resampled": sum(t.resampled for t in self.tokens),
            **{
                name: quantiles([getattr(t, name) for t in self.tokens])
                for name in ("kurtosis", "determinacy", "entropy")
            },
        }

    def rows(self) -> list[dict[str, Any]]:
        """One plain dict a token."""
        return [asdict(t) for t in self.tokens]

    def write(self, path: Path) -> None:
        """Write one row a token as Parquet; the profile and schema version travel in the file's metadata."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        numbers = {"id": pa.int64(), "sequence": pa.int64(), "resampled": pa.bool_()}
        words = {"text", "state", "reason"}
        names = list(TokenTrace.__dataclass_fields__)
        schema = pa.schema([(n, pa.string() if n in words else numbers.get(n, pa.float64())) for n in names])
        schema = schema.with_metadata(
            {"surefoot.trace": str(TRACE_SCHEMA), "surefoot.profile": self.profile.dump() if self.profile else ""}
        )
        try:
            pq.write_table(pa.Table.from_pylist(self.rows(), schema=schema), path)
        except OSError as error:
            raise InputError(f"cannot write the trace to {path}: {error.strerror or error}.") from error


def quantiles(values: list[float | None]) -> dict[str, float] | None:
    """The 5, 50 and 95 % quantiles of the defined values; None when there are none."""
    defined = sorted(v for v in values if v is not None)
    if not defined:
        return None
    last = len(defined) - 1

    def at(q: float) -> float:
        i = int(q * last)
        return defined[i] + (q * last - i) * (defined[min(i + 1, last)] - defined[i])

    return {"p5": at(0.05), "p50": at(0.5), "p95": at(0.95)}


def reason(profile: Profile, values: list[float]) -> str:
    """Why a token is in its state, from one column of `Overrides.packed`."""
    state = State(int(values[row.STATE]))
    score = f"determinacy {values[row.SCORE]:.3g}"
    text = ""
    if state is State.FUSE and profile.fuse:
        text = f"entropy of the last {profile.fuse.window} tokens spreads less than {profile.fuse.std_below:g} nats"
    elif state is State.NEUTRAL and math.isnan(values[row.SCORE]):
        text = f"undefined: fewer than {profile.probe.min_keys} visible keys, or a head without spread"
    elif state is not State.NEUTRAL and not values[row.FRESH]:
        text = f"{state.name} held"
    elif state is State.SHOCK and profile.shock:
        text = f"jerk {values[row.JERK] / profile.shock.unit:.3g} beyond {profile.shock.threshold:g}"
    elif state is State.HIGH and profile.high:
        text = f"{score} > {profile.high.threshold:.3g}"
        if profile.high.std_below is not None:
            text += f" and std {values[row.STD]:.3g} < {profile.high.std_below:g}"
    elif state is State.LOW and profile.low:
        text = f"{score} < {profile.low.threshold:.3g}"
    if values[row.RESAMPLE] > 0 and profile.consistency:
        again = f"blocks agree {values[row.CONSISTENCY]:.3g} < {profile.consistency.threshold:g}, drawn again"
        text = f"{text}; {again}" if text else again
    return text


def _number(x: float) -> float | None:
    """``x`` rounded to what float32 knows; None for NaN (JSON has no NaN)."""
    return None if math.isnan(x) else float(f"{x:.7g}")
