"""What steadying buys on questions with known answers: right answers under fixed settings and under profiles.

python bench/sampling.py --data squad.json
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from transformers import LogitsProcessor, LogitsProcessorList

import surefoot
from common import load, parser, questions, report, right
from surefoot.engines.chat import chat_text
from surefoot.signals import logit_statistics

MAX_TOKENS = 32
FIXED: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "T 0.3": {"temperature": 0.3},
    "T 0.7": {"temperature": 0.7},
    "T 1.0": {"temperature": 1.0},
    "T 0.7, top-p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "T 1.0, min-p 0.1": {"temperature": 1.0, "min_p": 0.1},
}


class EntropyRule(LogitsProcessor):
    """The reference for profiles: the temperature chosen by the entropy of the step itself."""

    def __init__(self, limit: float, above: float, below: float) -> None:
        self.limit, self.above, self.below = limit, above, below

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # noqa: D102
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


def prefilled(model: Any, tokenizer: Any, prompts: list[str]) -> tuple[dict[str, torch.Tensor], Any]:
    """Inputs of a batch, and a cache that holds all of it but the last token; every setting continues from a copy."""
    texts = [chat_text(tokenizer, p) for p in prompts]
    x = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    inputs = {k: x[k] for k in ("input_ids", "attention_mask")}
    positions = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    with torch.inference_mode():
        out = model(
            input_ids=inputs["input_ids"][:, :-1],
            attention_mask=inputs["attention_mask"][:, :-1],
            position_ids=positions[:, :-1],
            use_cache=True,
            logits_to_keep=1,
        )
    return inputs, out["cache"]


def answers(model: Any, tokenizer: Any, batch: tuple[Any, Any], setting: dict[str, Any], seed: int) -> list[str]:
    """Answer a batch under one setting."""
    how = {"do_sample": True, "top_k": 0, **setting}
    profile, rule = how.pop("profile", None), how.pop("rule", None)
    if rule:
        how["logits_processor"] = LogitsProcessorList([EntropyRule(*rule)])
    if not how["do_sample"]:
        how = {"do_sample": False}
    inputs, cache = batch
    footing = surefoot.attach(model, profile) if profile else None
    torch.manual_seed(seed)
    try:
        out = model.generate(**inputs, cache=copy.deepcopy(cache), max_new_tokens=MAX_TOKENS, **how)
    finally:
        if footing:
            footing.detach()
    return list(tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


def main() -> None:
    args_parser = parser(__doc__ or "")
    args_parser.add_argument("--data", type=Path, required=True, help="questions in SQuAD format")
    args_parser.add_argument("--questions", type=int, default=200)
    args_parser.add_argument("--articles", default=":", help="a slice, to choose on some and report on others")
    args_parser.add_argument("--seeds", type=int, default=2)
    args_parser.add_argument("--batch", type=int, default=16)
    args_parser.add_argument("--profiles", nargs="*", default=["careful", "creative", "article"])
    args_parser.add_argument("--temperatures", nargs="*", type=float, default=[0.7, 1.0])
    args_parser.add_argument("--only", nargs="*", default=[], help="settings whose name contains one of these")
    args = args_parser.parse_args()
    model, tokenizer = load(args)
    asked = questions(args.data, args.questions, args.articles)
    asked.sort(key=lambda q: len(q["prompt"]))  # batches of like length pad less
    compared = settings(args)
    given: dict[str, list[list[str]]] = {
        name: [[] for _ in range(args.seeds if how.get("do_sample", True) else 1)] for name, how in compared.items()
    }
    for start in track(range(0, len(asked), args.batch), description="batches", disable=args.json):
        batch = prefilled(model, tokenizer, [q["prompt"] for q in asked[start : start + args.batch]])
        for name, how in compared.items():
            for seed, texts in enumerate(given[name]):
                texts += answers(model, tokenizer, batch, how, 1000 * seed + start)
    rows = []
    for name, texts in given.items():
        graded = [[right(a, q["answers"]) for a, q in zip(one, asked, strict=True)] for one in texts]
        accuracy = sum(map(sum, graded)) / (len(graded) * len(asked))
        # Questions are the unit: answers of two seeds to one question are not independent.
        deviations = [sum(c) / len(c) - accuracy for c in zip(*graded, strict=True)]
        rows.append(
            {
                "setting": name,
                "right": accuracy,
                "standard error": sum(d * d for d in deviations) ** 0.5 / len(asked),
                "by seed": " ".join(f"{sum(g) / len(asked):.3f}" for g in graded),
                "answers differ between seeds": sum(len(set(c)) > 1 for c in zip(*texts, strict=True)) / len(asked),
            }
        )
    report(args, "right answers by sampling setting", {"questions": len(asked), "seeds": args.seeds}, rows)


if __name__ == "__main__":
    main()
