"""The controller: a vectorised state machine over slots, one request a slot.

The slots' state lives here; the rules that advance it are in `machine`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.control.machine import ACTING, APPLIED, DECIDED, FIXED, LAST, P0, S1, S3, SAMPLING, T0, Machine
from surefoot.control.overrides import Ledger, Overrides, SamplerStep
from surefoot.control.profile import Profile
from surefoot.signals import Signals


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of one slot, to be restored later in any slot of a controller with the same profile."""

    profile: Profile
    values: Tensor


class Controller:
    """Decides, for every request of a batch and every token, how it is sampled.

    Parameters
    ----------
    profile : Profile
        Rules and recipe; see `load_profile`.
    capacity : int
        How many requests can be in flight.
    device : torch.device or str
        Where signals arrive and decisions are wanted.

    Notes
    -----
    Precedence: FUSE, then the larger of the state a rule asks for now and the state still held, in the order SHOCK,
    HIGH, LOW, NEUTRAL. A rule that fires in the held state renews the hold; a larger one ends it. An undefined score
    (too few keys) fires no rule, and a jerk needs four defined scores in a row. Greedy requests (temperature 0) stay
    greedy: their states are reported and only the fuse acts.
    """

    def __init__(self, profile: Profile, capacity: int, device: torch.device | str = "cpu") -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.profile = profile
        self.capacity = capacity
        self.device = torch.device(device)
        self._score = profile.recipe.compile(self.device)
        # NumPy's small operations cost a fifth of torch's; on the CPU the machine runs on a view of the same memory.
        self._on_numpy = self.device.type == "cpu"
        self._machine = Machine(profile, np if self._on_numpy else torch, self.device)
        self._state = torch.zeros(FIXED + self._machine.window - 1, capacity, device=self.device)
        self._view: Any = self._state.numpy() if self._on_numpy else self._state

    def reset(
        self,
        slots: Tensor,
        temperature: float | Tensor = 1.0,
        top_p: float | Tensor = 1.0,
        acting: bool | Tensor = True,
    ) -> None:
        """Begin new requests; nothing of an earlier one in the same slot remains.

        Parameters
        ----------
        slots : Tensor
            ``(B,)`` int64, distinct.
        temperature, top_p : float or Tensor
            The requests' own settings, a number or ``(B,)``; temperature 0 is greedy.
        acting : bool or Tensor
            False only monitors (S7, confidence=medium): states are reported, nothing is overridden.
        """
        slots = slots.to(self.device)
        self._state[:, slots] = 0.0
        self._state[S1 : S3 + 1, slots] = torch.nan
        for row, value in ((T0, temperature), (P0, top_p), (ACTING, acting)):
            self._state[row, slots] = torch.as_tensor(value, dtype=torch.float32, device=self.device)
        self._state[SAMPLING, slots] = self._state[ACTING, slots] * (self._state[T0, slots] > 0)

    def decide(self, signals: Signals, slots: Tensor) -> Overrides:
        """Advance each request by one token.

        Parameters
        ----------
        signals : Signals
            One step of B requests, on the controller's device.
        slots : Tensor
            ``(B,)`` int64 on the same device, distinct: the slot of each row.

        Returns
        -------
        Overrides
        """
        kurtosis, std = signals.kurtosis, signals.std
        score = self._score(signals.attention, kurtosis)
        inputs: tuple[Any, ...] = (
            score, std, signals.logits.entropy, signals.logits.forced, signals.consistency, kurtosis, slots,
        )  # fmt: skip
        if self._on_numpy:
            inputs = tuple(None if x is None else x.numpy() for x in inputs)
            return Overrides(torch.from_numpy(self._machine.advance(self._view, *inputs)))
        return Overrides(self._machine.advance(self._view, *inputs))

    def acknowledge(self, step: SamplerStep, slots: Tensor) -> None:
        """Record which of the decided overrides the sampler applied (S5, temperature-command drop rate).

        Reporting the same step again changes nothing.
        """
        state = self._view
        at: Any = slots.to(self.device)
        sequence: Any = step.sequence.to(self.device)
        if self._on_numpy:
            at, sequence = at.numpy(), sequence.numpy()
        current, last = state[DECIDED, at], state[LAST, at]
        applied = (sequence == current) & (current > last)
        state[APPLIED, at] += applied
        state[LAST, at] = last + (current - last) * applied

    def mute(self, slots: Tensor) -> None:
        """From now on override nothing in some slots: their requests have ended and only pad a batch.

        Parameters
        ----------
        slots : Tensor
            ``(capacity,)`` bool.
        """
        self._state[[ACTING, SAMPLING]] *= ~slots.to(self.device)

    def ledger(self, slots: Tensor | None = None) -> Ledger:
        """Overrides decided and applied so far by the requests in ``slots`` (default: all). Reads to the host."""
        rows = self._state[[DECIDED, APPLIED]]
        rows = rows if slots is None else rows[:, slots.to(self.device)]
        decided, applied = rows.sum(1).tolist()
        return Ledger(int(decided), int(applied))

    def snapshot(self, slot: int) -> Snapshot:
        """The state of ``slot``, for a request that is preempted."""
        return Snapshot(self.profile, self._state[:, slot].clone())

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        """Continue a preempted request in ``slot``; ValueError when it was decided under another profile."""
        if snapshot.profile != self.profile:
            raise ValueError(
                f"the snapshot belongs to profile '{snapshot.profile.name}' and this controller runs "
                f"'{self.profile.name}' with other rules"
            )
        self._state[:, slot] = snapshot.values.to(self.device)
