"""One answer on its way: from a plan and a prompt to text, the ``surefoot`` object, trace and metrics."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any

from surefoot.control import Profile, TokenTrace
from surefoot.engines.base import Generation, Step
from surefoot.monitor import Metrics
from surefoot.serve.policy import Plan
from surefoot.serve.slots import Job
from surefoot.serve.traces import TraceStore

# A span is uncertain where determinacy is in the lowest tenth of the profile's own calibration.
UNCERTAIN_QUANTILE = "0.1"
_HAN = re.compile(r"[\u3400-\u9fff]")


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that can be sent now, and the tokens it came from."""

    text: str
    tokens: tuple[TokenTrace, ...]
    steps: tuple[Step, ...] = ()


def language_of(text: str) -> str:
    """Language code of a user's text, as far as safe responses need it: "zh" or "en"."""
    return "zh" if _HAN.search(text) else "en"


class Answer:
    """Decodes, applies the fallback, reports.

    Parameters
    ----------
    plan : Plan
    job : Job
    prompt : list of dict
        The messages as the model sees them; the trace keeps them if it may.
    endpoint, owner : str
        For metrics and the trace.
    arrived : float
        On the clock of `time.monotonic`.
    safe_responses : dict
        By language.
    traces, metrics
        Where to report.
    """

    def __init__(
        self,
        plan: Plan,
        job: Job,
        prompt: list[dict[str, str]],
        *,
        endpoint: str,
        owner: str,
        arrived: float,
        safe_responses: dict[str, str],
        traces: TraceStore,
        metrics: Metrics,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.plan, self.job = plan, job
        self.text = ""
        self.abstained = False
        self._prompt, self._endpoint, self._owner, self._arrived = prompt, endpoint, owner, arrived
        asked = next((m["content"] for m in reversed(prompt) if m["role"] == "user"), "")
        self._safe_response = safe_responses.get(language_of(asked), safe_responses["en"])
        self._traces, self._metrics = traces, metrics
        self._spans: list[tuple[int, int]] = []
        self._withdrawn: int | None = None

    @property
    def generation(self) -> Generation:
        """What runs."""
        return self.job.generation

    @property
    def ended_by(self) -> str:
        """eos, stop, length, context, fuse; or why it was cut short: timeout, disconnect, shutdown."""
        if self.job.cause is not None and self.generation.finish_reason == "cancelled":
            return self.job.cause
        return self.generation.finish_reason or "cancelled"

    async def pieces(self, *, streamed: bool) -> AsyncIterator[Piece]:
        """The answer piece by piece; the last may be the safe response. Reports when it ends, however it ends."""
        outcome = "error"
        try:
            waiting: list[Step] = []
            async for step in self.job.steps():
                if not self.text and not waiting:
                    self._metrics.first_token.observe(time.monotonic() - self._arrived)
                waiting.append(step)
                if step.text or step.token is None:
                    yield self._piece(waiting)
                    waiting = []
            if waiting:
                yield self._piece(waiting)
            if self.ended_by == "fuse" and self.plan.directive.instruction.fallback == "conservative":
                yield self._abstain(streamed)
            outcome = self.ended_by
        except GeneratorExit:
            outcome = "disconnect"
            raise
        finally:
            self._report("disconnect" if self.job.cause == "disconnect" else outcome)

    def _piece(self, steps: list[Step]) -> Piece:
        start = len(self.text)
        self.text += "".join(s.text for s in steps)
        tokens = tuple(s.token for s in steps if s.token is not None)
        self._spans += [(start, len(self.text))] * len(tokens)
        return Piece(self.text[start:], tokens, tuple(steps))

    def _abstain(self, streamed: bool) -> Piece:
        """What was sent cannot be taken back: in a stream the safe response follows it, else it stands alone."""
        self.abstained = True
        self._withdrawn = len(self.text) if streamed else None
        shown = f"\n\n{self._safe_response}" if streamed and self.text else self._safe_response
        self.text = self.text + shown if streamed else shown
        return Piece(shown, ())

    def surefoot(self) -> dict[str, Any]:
        """The object that every answer carries."""
        plan, trace, ledger = self.plan, self.generation.trace, self.generation.ledger()
        wanted = plan.directive.instruction
        summary = trace.summary()
        failed = self.generation.failed_open
        reason = None
        if self.abstained:
            reason = next((t.reason for t in reversed(trace.tokens) if t.state == "FUSE"), "the fuse has blown")
        report: dict[str, Any] = {
            "trace_id": self.id,
            "mode": "failed open" if failed else plan.mode,
            "failure": failed,
            "profile": plan.profile and {"name": plan.profile.name, "version": plan.profile.version},
            "arm": plan.arm,
            **asdict(wanted),
            "ended_by": self.ended_by,
            "states": summary["states"],
            "kurtosis": summary["kurtosis"],
            "determinacy": summary["determinacy"],
            "entropy": summary["entropy"],
            "overrides": {"decided": ledger.decided, "applied": ledger.applied},
            "risk": None,
            "abstained": self.abstained,
            "reason": reason,
        }
        if self._withdrawn is not None:
            report["withdrawn"] = [0, self._withdrawn]
        if wanted.fallback == "transparent":
            report["uncertain"] = self.uncertain()
        if plan.directive.trace:
            report["tokens"] = trace.rows()
        return report

    def uncertain(self) -> list[dict[str, Any]]:
        """Spans of the text whose tokens are uncertain, with character offsets; neighbours are one span."""
        spans: list[dict[str, Any]] = []
        for token, (start, end) in zip(self.generation.trace.tokens, self._spans, strict=False):
            if start == end or not is_uncertain(token, self.plan.profile):
                continue
            if spans and spans[-1]["end"] >= start:
                spans[-1]["end"] = max(end, spans[-1]["end"])
                spans[-1]["determinacy"] = min(
                    (x for x in (spans[-1]["determinacy"], token.determinacy) if x is not None), default=None
                )
            else:
                spans.append({"start": start, "end": end, "determinacy": token.determinacy})
        return [{**s, "text": self.text[s["start"] : s["end"]]} for s in spans]

    def _report(self, outcome: str) -> None:
        generation, plan = self.generation, self.plan
        wants = plan.directive.instruction.confidence == "high"
        active = (plan.mode == "steadied" and not generation.failed_open) if wants else None
        self._metrics.answered(generation.trace, generation.ledger(), active=active, room=generation.room())
        seconds = time.monotonic() - self._arrived
        self._metrics.total.observe(seconds)
        self._metrics.requests.labels(self._endpoint, outcome, plan.arm).inc()
        if self.job.cause is not None:
            self._metrics.cancellations.labels(self.job.cause).inc()
        if generation.failed_open:
            self._metrics.failed_open.inc()
        if self.abstained:
            self._metrics.abstentions.inc()
        report = {k: v for k, v in self.surefoot().items() if k not in ("trace_id", "tokens")}
        record = {"id": self.id, **report, "seconds": round(seconds, 4), "outcome": outcome}
        record |= {"prompt": self._prompt, "text": self.text, "tokens": generation.trace.rows()}
        self._traces.add(self._owner, record)


def is_uncertain(token: TokenTrace, profile: Profile | None) -> bool:
    """Whether a token counts as uncertain: a lowest-tenth score, or SHOCK or FUSE; without calibration also LOW."""
    if token.state in ("SHOCK", "FUSE"):
        return True
    limit = profile.provenance.score_quantiles.get(UNCERTAIN_QUANTILE) if profile and profile.provenance else None
    if limit is None:
        return token.state == "LOW"
    return token.determinacy is not None and token.determinacy < limit
