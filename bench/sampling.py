"""What steadying buys on questions with known answers: right answers under fixed settings and under profiles.

python bench/sampling.py --data squad.json
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from common import load, parser, questions, report, right
from rich.progress import track
from transformers import LogitsProcessor, LogitsProcessorList

import surefoot
from surefoot.engines.chat import chat_text
from surefoot.signals import logit_statistics

FIXED: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "T 0.3": {"temperature": 0.3},
    "T 0.7": {"temperature": 0.7},
    "T 0.85": {"temperature": 0.85},
    "T 1.0": {"temperature": 1.0},
    "T 0.7, top-p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "T 1.0, min-p 0.1": {"temperature": 1.0, "min_p": 0.1},
}


class EntropyRule(LogitsProcessor):
    """The reference for profiles: the temperature chosen by the entropy of the step itself."""

    def __init__(self, limit: float, above: float, below: float) -> None:
        self.limit, self.above, self.below = limit, above, below

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        unsure = logit_statistics(scores).entropy > self.limit
        return scores / torch.where(unsure, self.above, self.below).unsqueeze(-1)


def settings(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """All settings to compare, by name."""
    chosen = dict(FIXED)
    chosen["entropy > 0.5: T 0.1, else 0.85"] = {"temperature": 1.0, "rule": (0.5, 0.1, 0.85)}
    for profile in args.profiles:
        for temperature in args.temperatures:
            chosen[f"{Path(profile).stem} at T {temperature:g}"] = {"temperature": temperature, "profile": profile}
    return {k: v for k, v in chosen.items() if not args.only or any(o in k for o in args.only)}


def answers(model: Any, tokenizer: Any, prompts: list[str], setting: dict[str, Any], seed: int, batch: int) -> list[str]:
    """Answer ``prompts`` under one setting."""
    how = {"do_sample": True, "top_k": 0, **setting}
    profile, rule = how.pop("profile", None), how.pop("rule", None)
    if rule:
        how["logits_processor"] = LogitsProcessorList([EntropyRule(*rule)])
    if not how["do_sample"]:
        how = {"do_sample": False}
    footing = surefoot.attach(model, profile) if profile else None
    torch.manual_seed(seed)
    texts = []
    try:
        for start in range(0, len(prompts), batch):
            chunk = [chat_text(tokenizer, p) for p in prompts[start : start + batch]]
            x = tokenizer(chunk, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
            out = model.generate(
                input_ids=x["input_ids"], attention_mask=x["attention_mask"], max_new_tokens=32, **how
            )
            texts += tokenizer.batch_decode(out[:, x["input_ids"].shape[1] :], skip_special_tokens=True)
    finally:
        if footing:
            footing.detach()
    return texts


def main() -> None:
    args_parser = parser(__doc__ or "")
    args_parser.add_argument("--data", type=Path, required=True, help="questions in SQuAD format")
    args_parser.add_argument("--questions", type=int, default=200)
    args_parser.add_argument("--seeds", type=int, default=2)
    args_parser.add_argument("--batch", type=int, default=16)
    args_parser.add_argument("--profiles", nargs="*", default=["careful", "creative", "article"])
    args_parser.add_argument("--temperatures", nargs="*", type=float, default=[0.7, 1.0])
    args_parser.add_argument("--only", nargs="*", default=[], help="settings whose name contains one of these")
    args = args_parser.parse_args()
    model, tokenizer = load(args)
    asked = questions(args.data, args.questions)
    asked.sort(key=lambda q: len(q["prompt"]))  # batches of like length pad less
    rows = []
    for name, setting in track(settings(args).items(), description="settings", disable=args.json):
        start = time.perf_counter()
        seeds = range(args.seeds if setting.get("do_sample", True) else 1)
        given = [answers(model, tokenizer, [q["prompt"] for q in asked], setting, s, args.batch) for s in seeds]
        graded = [[right(a, q["answers"]) for a, q in zip(g, asked, strict=True)] for g in given]
        differ = [len({g[i] for g in given}) > 1 for i in range(len(asked))]
        accuracy = sum(map(sum, graded)) / (len(graded) * len(asked))
        rows.append(
            {
                "setting": name,
                "right": accuracy,
                "by seed": " ".join(f"{sum(g) / len(asked):.3f}" for g in graded),
                # Questions are the unit: answers of two seeds to one question are not independent.
                "standard error": (sum((sum(c) / len(c) - accuracy) ** 2 for c in zip(*graded, strict=True)) ** 0.5)
                / len(asked),
                "answers differ between seeds": sum(differ) / len(asked),
                "seconds": time.perf_counter() - start,
            }
        )
    report(args, "right answers by sampling setting", {"questions": len(asked), "seeds": args.seeds}, rows)


if __name__ == "__main__":
    main()
