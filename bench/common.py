"""What the benchmarks share: the default model, questions, grading, and how a result is printed."""

from __future__ import annotations

import argparse
import json
import re
import statistics
import string
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def parser(description: str) -> argparse.ArgumentParser:
    """An argument parser with what every benchmark takes."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    made.add_argument("--threads", type=int, default=0, help="torch threads (0: torch's default)")
    made.add_argument("--model", default="smollm2", help="a name from `surefoot models`, or a folder")
    return made


def load(args: argparse.Namespace) -> tuple[Any, Any]:
    """The model and tokenizer that ``args`` name."""
    import torch

    from surefoot.models import load_model

    if args.threads:
        torch.set_num_threads(args.threads)
    return load_model(args.model)


def report(args: argparse.Namespace, title: str, figures: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Print ``figures`` and ``rows`` as one JSON object, or as a table."""
    if args.json:
        json.dump({"benchmark": title, **figures, "rows": rows}, sys.stdout, indent=1)
        print()
        return
    console = Console()
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()))
    console.print(table)
    for name, value in figures.items():
        console.print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}", highlight=False)


def median_us(work: Callable[[], Any], runs: int = 2000, warmup: int = 100) -> float:
    """Median time of ``work`` in microseconds."""
    for _ in range(warmup):
        work()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def questions(path: Path, limit: int, articles: str = ":") -> list[dict[str, Any]]:
    """``limit`` questions from some articles of a SQuAD file (a slice like "0:12"), spread evenly over them."""
    from surefoot.tune.data import question_prompt

    first, last = (int(x) if x else None for x in articles.split(":"))
    found = [
        {
            "prompt": question_prompt(qa["question"], paragraph["context"]),
            "passage": paragraph["context"],
            "answers": [a["text"] for a in qa["answers"]],
        }
        for article in json.loads(path.read_text(encoding="utf-8"))["data"][first:last]
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]
    return found if limit >= len(found) else [found[i * len(found) // limit] for i in range(limit)]


def right(answer: str, accepted: list[str]) -> bool:
    """Whether an accepted answer is contained in ``answer``, or shares at least half its words with it (F1)."""
    given = _words(answer)
    for gold in map(_words, accepted):
        if gold and f" {' '.join(gold)} " in f" {' '.join(given)} ":
            return True
        common = sum((Counter(gold) & Counter(given)).values())
        if gold and given and 2 * common / (len(gold) + len(given)) >= 0.5:
            return True
    return False


def _words(text: str) -> list[str]:
    text = re.sub(f"[{re.escape(string.punctuation)}]", " ", text.lower())
    return [w for w in text.split() if w not in {"a", "an", "the"}]
