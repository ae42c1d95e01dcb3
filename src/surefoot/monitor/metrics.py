"""What Prometheus scrapes. Labels are bounded: states, causes, arms and endpoints, never a user's text."""

from __future__ import annotations

import math
import statistics
from collections import deque

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from surefoot.control import Ledger, State, Trace

# The gauges of S9 describe the answers that ended last, so many of them.
WINDOW = 100
SPREAD = 5

_FIRST = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2.5, 5, 10, 30)
_TOKEN = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
_TOTAL = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """All metrics of one server.

    Parameters
    ----------
    registry : CollectorRegistry, optional
        Where they are registered; a new one by default.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        r = self.registry

        def recent(name: str, about: str) -> Gauge:
            gauge = Gauge(name, f"{about}, over the last {WINDOW} answers (S9)", registry=r)
            gauge.set(math.nan)  # unknown, which is neither good nor an alarm
            return gauge

        self.active_ratio = recent(
            "ssp_state_machine_active_ratio",
            "Share of answers that had the state machine to the end, of those that wanted it",
        )
        self.fragmentation = recent("kv_cache_fragmentation_rate", "Share of the cache that no token used")
        self.drop_rate = recent("temp_command_drop_rate", "Overrides decided and not applied, over those decided")
        self.entropy_std = recent(
            "semantic_entropy_std_5tokens", f"Standard deviation of the entropy of {SPREAD} tokens in a row, nats"
        )
        self.consistency = recent("cross_block_consistency_score", "Cosine of adjacent blocks' outputs, where measured")
        self.requests = Counter(
            "surefoot_requests",
            "Requests by endpoint, how they ended, and arm",
            ["endpoint", "outcome", "arm"],
            registry=r,
        )
        self.tokens = Counter("surefoot_tokens", "Tokens by state", ["state"], registry=r)
        self.overrides = Counter("surefoot_overrides", "Overrides", ["stage"], registry=r)
        self.fuses = Counter("surefoot_fuses", "Answers whose fuse has blown", registry=r)
        self.resamples = Counter("surefoot_resamples", "Tokens drawn twice", registry=r)
        self.abstentions = Counter("surefoot_abstentions", "Answers replaced by the safe response", registry=r)
        self.failed_open = Counter("surefoot_failed_open", "Answers that went on without a failing probe", registry=r)
        self.cancellations = Counter("surefoot_cancellations", "Answers cut short, by cause", ["cause"], registry=r)
        self.feedback = Counter("surefoot_feedback", "Feedback received", ["kind"], registry=r)
        self.waiting = Gauge("surefoot_queue_waiting", "Requests that wait for a slot", registry=r)
        self.busy = Gauge("surefoot_slots_busy", "Slots at work", registry=r)
        self.first_token = Histogram(
            "surefoot_first_token_seconds", "Arrival to first token", buckets=_FIRST, registry=r
        )
        self.per_token = Histogram("surefoot_token_seconds", "One token", buckets=_TOKEN, registry=r)
        self.total = Histogram("surefoot_request_seconds", "Arrival to end", buckets=_TOTAL, registry=r)
        self._active: deque[float] = deque(maxlen=WINDOW)
        self._ledgers: deque[Ledger] = deque(maxlen=WINDOW)
        self._spreads: deque[float] = deque(maxlen=WINDOW)
        self._agreement: deque[float] = deque(maxlen=WINDOW)
        self._room: deque[tuple[int, int]] = deque(maxlen=WINDOW)

    def answered(self, trace: Trace, ledger: Ledger, *, active: bool | None, room: tuple[int, int]) -> None:
        """Count an answer that has ended.

        Parameters
        ----------
        trace : Trace
        ledger : Ledger
        active : bool or None
            Whether the state machine worked to the end; None when the request did not want it.
        room : tuple of int
            Tokens its cache had room for, and tokens in it.
        """
        for token in trace.tokens:
            self.tokens.labels(token.state).inc()
            if token.latency_ms is not None:
                self.per_token.observe(token.latency_ms / 1e3)
        self.overrides.labels("decided").inc(ledger.decided)
        self.overrides.labels("applied").inc(ledger.applied)
        self.resamples.inc(sum(t.resampled for t in trace.tokens))
        if any(t.state == State.FUSE.name for t in trace.tokens):
            self.fuses.inc()
        if active is not None:
            self._active.append(float(active))
            self.active_ratio.set(statistics.fmean(self._active))
        self._ledgers.append(ledger)
        self.drop_rate.set(
            Ledger(sum(x.decided for x in self._ledgers), sum(x.applied for x in self._ledgers)).drop_rate
        )
        self._room.append(room)
        held, used = (sum(x) for x in zip(*self._room, strict=True))
        self.fragmentation.set(1 - used / held if held else 0.0)
        _mean_into(self._spreads, entropy_spread(trace), self.entropy_std)
        agreement = [t.consistency for t in trace.tokens if t.consistency is not None]
        _mean_into(self._agreement, statistics.fmean(agreement) if agreement else None, self.consistency)


def _mean_into(window: deque[float], value: float | None, gauge: Gauge) -> None:
    if value is not None:
        window.append(value)
        gauge.set(statistics.fmean(window))


def entropy_spread(trace: Trace, length: int = SPREAD) -> float | None:
    """Mean standard deviation of the entropy over ``length`` tokens in a row, nats; None with fewer tokens."""
    entropies = [t.entropy for t in trace.tokens if t.entropy is not None]
    windows = [entropies[i : i + length] for i in range(len(entropies) - length + 1)]
    return statistics.fmean(map(statistics.pstdev, windows)) if windows else None
