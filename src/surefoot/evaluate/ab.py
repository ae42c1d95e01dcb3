"""``surefoot ab report``: arms of an A/B compared, with confidence intervals (S12)."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from surefoot.errors import InputError

CONFIDENCE = 0.95
ENOUGH = 30  # below this many values an interval is too narrow to be believed
# Distinct-n falls with the amount of text, so it is taken over so many answers at a time; arms then compare.
BATCH = 10
BLEU_ANSWERS = 100  # self-BLEU compares every answer with all others; more cost time and change little
RESAMPLES = 2000


@dataclass(slots=True)
class Arm:
    """The answers of one arm, in the order they came."""

    name: str
    seconds: list[float] = field(default_factory=list)
    fused: list[float] = field(default_factory=list)
    correct: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its interval; None where there is too little to tell."""

    value: float | None
    low: float | None
    high: float | None
    n: int


def read_arms(folder: Path) -> dict[str, Arm]:
    """Arms from a server's trace folder.

    Raises
    ------
    InputError
        No such folder, or no traces in it. Damaged lines are skipped with a warning.
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}.", "Start the server with --traces FOLDER to have one.")
    records: dict[str, dict[str, Any]] = {}
    for record in _lines(folder):
        if (
            record.get("kind") == "trace"
            and {"arm", "seconds", "states"} <= set(record)
            and record.get("outcome") not in ("error", "disconnect", "shutdown")
        ):
            records[record["id"]] = record
        elif record.get("kind") == "feedback" and record.get("id") in records:
            records[record["id"]]["feedback"] = record
    if not records:
        raise InputError(f"{folder} has no traces of finished answers.")
    arms: dict[str, Arm] = {}
    for record in records.values():
        arm = arms.setdefault(record["arm"], Arm(record["arm"]))
        arm.seconds.append(record["seconds"])
        arm.fused.append(float(record["states"].get("FUSE", 0) > 0))
        if record.get("text"):
            arm.texts.append(record["text"])
        said = record.get("feedback", {})
        if said.get("correct") is not None:
            arm.correct.append(float(said["correct"]))
        elif said.get("satisfied") is not None:
            arm.correct.append(float(said["satisfied"]))
    return arms


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.jsonl")):
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                try:
                    record = json.loads(line)
                except ValueError:
                    if line.strip():  # the half line of a server that was killed, or is writing just now
                        warnings.warn(f"{path}, line {number}, is damaged and was skipped", stacklevel=2)
                    continue
                if isinstance(record, dict) and isinstance(record.get("id"), str):
                    yield record


def compare(arms: dict[str, Arm], seed: int = 0) -> list[dict[str, Any]]:
    """Figures of each arm, and each arm's difference to the control arm.

    Returns
    -------
    list of dict
        ``arm``, ``answers`` and an `Estimate` each of ``accuracy`` (from feedback), ``distinct_1``, ``distinct_2``
        (Li et al. 2016, over ten answers at a time), ``self_bleu`` (Zhu et al. 2018; lower is more diverse),
        ``seconds`` (median) and ``fuse_rate``; ``differences`` to "control" where that exists; ``too_small`` names the
        figures from fewer than 30 values (300 answers for distinct-n).
    """
    values = {name: _values(arm) for name, arm in arms.items()}
    rows = []
    for name in sorted(arms, key=lambda n: (n != "control", n)):
        figures = {m: estimate(m, v, seed) for m, v in values[name].items()}
        row: dict[str, Any] = {"arm": name, "answers": len(arms[name].seconds), **figures}
        row["too_small"] = [m for m, e in figures.items() if e.n < ENOUGH]
        if name != "control" and "control" in values:
            control = values["control"]
            row["differences"] = {m: difference(m, v, control[m], seed) for m, v in values[name].items()}
        rows.append(row)
    return rows


def _values(arm: Arm) -> dict[str, list[float]]:
    words = [t.split() for t in arm.texts]
    batches = [words[i : i + BATCH] for i in range(0, len(words) - BATCH + 1, BATCH)]
    return {
        "accuracy": arm.correct,
        "distinct_1": [distinct(batch, 1) for batch in batches],
        "distinct_2": [distinct(batch, 2) for batch in batches],
        "self_bleu": self_bleu(arm.texts),
        "seconds": arm.seconds,
        "fuse_rate": arm.fused,
    }


def _reduce(measure: str) -> Any:
    return np.median if measure == "seconds" else np.mean


def estimate(measure: str, values: list[float], seed: int) -> Estimate:
    """A figure with its interval: Wilson's for shares of yes and no, else the percentile bootstrap's."""
    n = len(values)
    if n == 0:
        return Estimate(None, None, None, 0)
    value = float(_reduce(measure)(values))
    if set(values) <= {0.0, 1.0}:
        interval = stats.binomtest(round(sum(values)), n).proportion_ci(CONFIDENCE, method="wilson")
        return Estimate(value, float(interval.low), float(interval.high), n)
    return Estimate(value, *_bootstrap((values,), _reduce(measure), seed), n)


def difference(measure: str, one: list[float], other: list[float], seed: int) -> Estimate:
    """A figure of ``one`` minus that of ``other``, independent samples, with its percentile bootstrap interval."""
    n = min(len(one), len(other))
    if n == 0:
        return Estimate(None, None, None, 0)
    reduce = _reduce(measure)

    def minus(a: Any, b: Any, axis: int = -1) -> Any:
        return reduce(a, axis=axis) - reduce(b, axis=axis)

    return Estimate(float(minus(one, other)), *_bootstrap((one, other), minus, seed), n)


def _bootstrap(samples: tuple[list[float], ...], statistic: Any, seed: int) -> tuple[float | None, float | None]:
    if min(map(len, samples)) < 2:
        return None, None
    found = stats.bootstrap(
        samples, statistic, n_resamples=RESAMPLES, confidence_level=CONFIDENCE, method="percentile", vectorized=True,
        rng=np.random.default_rng(seed), batch=100,
    ).confidence_interval  # fmt: skip
    return float(found.low), float(found.high)


def distinct(texts: list[list[str]], n: int) -> float:
    """Distinct n-grams of words over all n-grams; 0 without any."""
    grams = [tuple(words[i : i + n]) for words in texts for i in range(len(words) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0


def self_bleu(texts: list[str]) -> list[float]:
    """BLEU of each answer against the others, from 0 to 1; of at most 100 answers, spread evenly."""
    from sacrebleu.metrics.bleu import BLEU

    step = max(1, -(-len(texts) // BLEU_ANSWERS))
    chosen = texts[::step]
    if len(chosen) < 2:
        return []
    bleu = BLEU(effective_order=True)
    return [bleu.sentence_score(t, chosen[:i] + chosen[i + 1 :]).score / 100 for i, t in enumerate(chosen)]
