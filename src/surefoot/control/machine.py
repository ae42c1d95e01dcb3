"""The state machine: one token for a batch of requests, as arithmetic on arrays.

One implementation serves NumPy (on the CPU, whose small operations cost a fifth of torch's) and torch (on a device,
without a host synchronisation): it uses what both spell the same way. Constants are 0-d arrays because NumPy is slower
with Python numbers, and temperature and top-p travel as one ``(2, B)`` pair to halve the number of operations.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from surefoot.control import overrides as row
from surefoot.control.profile import Profile
from surefoot.control.rules import Action
from surefoot.control.state import State

Array = Any  # numpy.ndarray or torch.Tensor

# Rows of the state, float32, one column a slot: the request's own temperature and top-p; whether it is under control,
# and also sampled; the last three smoothed scores, NaN until known; the state held, its temperature and top-p, and for
# how many tokens more; overrides decided, applied, and the last one acknowledged; entropies counted.
# The fuse's window of entropies follows.
T0, P0, ACTING, SAMPLING, S1, S2, S3, HELD, HELD_T, HELD_P, LEFT, DECIDED, APPLIED, LAST, COUNTED = range(15)
FIXED = 15
OWN, HELD_PAIR = slice(T0, P0 + 1), slice(HELD_T, HELD_P + 1)


class Machine:
    """The rules of a profile as tables indexed by `State`.

    Parameters
    ----------
    profile : Profile
    xp : module
        ``numpy`` or ``torch``.
    device : torch.device
        Where the arrays live; the CPU for NumPy.
    """

    def __init__(self, profile: Profile, xp: Any, device: torch.device) -> None:
        self._xp = xp
        self._fuse, self._consistency = profile.fuse, profile.consistency
        self.window = profile.fuse.window if profile.fuse else 1

        def array(value: Any, dtype: Any = np.float32) -> Array:
            made = np.asarray(value, dtype=dtype)
            return made if xp is np else torch.from_numpy(made).to(device)

        low, high, shock = profile.low, profile.high, profile.shock
        columns = [_bounds(rule.action if rule else None) for rule in (None, low, high, shock)]
        self._tables = array([*zip(*columns, strict=True), [float(s) for s in State][:4]])
        # A rule that is absent costs nothing; LOW's threshold is then one that no score meets.
        self._low = array(low.threshold if low else -math.inf)
        self._high = array(high.threshold) if high else None
        self._std = array(high.std_below) if high and high.std_below else None
        self._shock = array(shock.threshold * shock.unit) if shock else None
        self._smoothing = array(shock.smoothing) if shock and shock.smoothing < 1 else None
        self._slope = array(1.0 / low.action.span) if low and low.action.span else None
        self._consistent = array(profile.consistency.threshold) if profile.consistency else None
        self._per_token = array(1.0 / self.window)
        self._variance = array(profile.fuse.std_below**2 if profile.fuse else 0.0)
        self._enough = array(float(self.window))
        self._zero, self._one, self._three = array(0.0), array(1.0), array(3.0)
        self._is_low, self._is_high, self._is_shock = (
            array(int(s), np.int64) for s in (State.LOW, State.HIGH, State.SHOCK)
        )
        self._blown_code = array(float(State.FUSE))

    def _columns(self, table: Array, index: Array) -> Array:
        """``table[:, index]``, by the fastest means of either library."""
        if self._xp is np:
            return table.take(index, 1, mode="clip")
        return table.index_select(1, index)

    def advance(
        self,
        state: Array,
        score: Array,
        std: Array,
        entropy: Array,
        forced: Array,
        consistency: Array | None,
        kurtosis: Array,
        slots: Array,
    ) -> Array:
        """One token for each row: reads and writes ``state[:, slots]``, returns `Overrides.packed`.

        Every input is ``(B,)``; ``forced`` is bool, ``slots`` int64 and distinct, the rest float32.
        """
        xp = self._xp
        s = self._columns(state, slots)
        own, left = s[OWN], s[LEFT]
        jerk = self._jerk(s, score) if self._shock is not None else None

        # What the rules ask for now: the largest state whose rule is met. Comparisons with NaN are false, and HIGH and
        # LOW exclude each other, so that their sum is their maximum.
        asked = (score < self._low) * self._is_low
        if self._high is not None:
            met = score > self._high
            asked = asked + (met if self._std is None else met & (std < self._std)) * self._is_high
        if jerk is not None:
            asked = xp.maximum(asked, (abs(jerk) > self._shock) * self._is_shock)
        table = self._columns(self._tables, asked)
        goal, most, least, hold, code = table[0:2], table[2:4], table[4:6], table[6], table[7]
        if self._slope is not None:
            depth = xp.minimum(xp.maximum((self._low - score) * self._slope, self._zero), self._one)
            goal[0] = xp.where(asked == self._is_low, own[0] + (goal[0] - own[0]) * depth, goal[0])
        pair = xp.maximum(xp.minimum(goal, own + most), own + least)

        # Against what is still held from before: the larger state wins, the same one is renewed.
        held = s[HELD] * (left > self._zero)
        keeps = held > code
        fresh = (code >= held) & (code > self._zero)
        now = xp.maximum(code, held)
        pair = xp.where(keeps, s[HELD_PAIR], pair)

        stop, blown = self._blow(s, entropy, forced)
        used = xp.where(s[SAMPLING] > self._zero, pair, own)
        differs = used != own
        changed = differs[0] | differs[1] | stop
        out = xp.empty((row.ROWS, score.shape[0]), dtype=score.dtype, device=score.device)
        out[row.RESAMPLE], out[row.CONSISTENCY] = self._zero, math.nan
        if self._consistent is not None and consistency is not None:
            resample = (s[SAMPLING] > self._zero) & (consistency < self._consistent)
            out[row.RESAMPLE], out[row.CONSISTENCY] = resample, consistency
            changed = changed | resample
        s[DECIDED] += changed
        out[row.TEMPERATURE : row.TOP_P + 1] = used
        out[row.STATE] = xp.where(blown, self._blown_code, now)
        out[row.FRESH], out[row.SEQUENCE], out[row.STOP] = fresh, s[DECIDED] * changed, stop
        out[row.SCORE], out[row.ENTROPY] = score, entropy
        out[row.JERK] = math.nan if jerk is None else jerk
        out[row.KURTOSIS], out[row.STD] = kurtosis, std

        s[HELD], s[HELD_PAIR], s[LEFT] = now, pair, xp.where(fresh, hold, left) - self._one
        state[:, slots] = s
        return out

    def _jerk(self, s: Array, score: Array) -> Array:
        """Third difference of the smoothed score, NaN until four in a row are known; keeps the last three."""
        smooth = score
        if self._smoothing is not None:
            mixed = s[S1] + self._smoothing * (score - s[S1])
            smooth = self._xp.where(mixed == mixed, mixed, score)
        jerk = smooth - s[S3] + self._three * (s[S2] - s[S1])
        s[S3], s[S2], s[S1] = s[S2], s[S1], smooth
        return jerk

    def _blow(self, s: Array, entropy: Array, forced: Array) -> tuple[Array, Array]:
        """Which answers the fuse stops, and where it would; keeps the window. Forced tokens do not count."""
        if self._fuse is None:
            never = s[T0] != s[T0]
            return never, never
        counts = (entropy == entropy) & ~forced
        window = s[FIXED:]
        # Shifted by the newest entropy: the spread asked for is small against the values.
        d = window - entropy
        total, square = d.sum(0), (d * d).sum(0)
        variance = (square - total * total * self._per_token) * self._per_token
        s[COUNTED] += counts
        blown = counts & (s[COUNTED] >= self._enough) & (variance < self._variance)
        shifted = self._xp.empty_like(window)
        shifted[0], shifted[1:] = entropy, window[:-1]
        s[FIXED:] = self._xp.where(counts, shifted, window)
        return blown & (s[ACTING] > self._zero), blown


def _bounds(action: Action | None) -> list[float]:
    """What an action does, as a column of the tables: goals for temperature and top-p; how far above the request's own
    settings each may lie; how far below (0 and 0: exactly there); the hold.
    """
    if action is None:
        return [0.0] * 7
    t, t_most, t_least = 0.0, 0.0, 0.0
    if action.temperature is not None:
        t = action.temperature
        t_most = 0.0 if action.approach == "lower" else math.inf
        t_least = 0.0 if action.approach == "raise" else -math.inf
    p, p_bound = (0.0, 0.0) if action.top_p is None else (action.top_p, math.inf)
    return [t, p, t_most, p_bound, t_least, -p_bound, float(action.hold)]
