"""What the signals say on questions with known answers: the tables of docs/results.md.

How often the article's rules fire, how well single scores and fitted ones tell right answers from wrong ones (AUROC),
and how well attention foretells the entropy of the next token.

python bench/signals.py --data squad.json
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import LogitsProcessorList

from common import load, parser, questions, report, right
from surefoot.control import ConsistencyRule, Profile, Recipe, load_profile
from surefoot.control.profile import Probe as ProbeSettings
from surefoot.control.recipe import features
from surefoot.engines.chat import chat_text, end_ids
from surefoot.engines.identity import identity
from surefoot.engines.probe import Probe
from surefoot.signals import STATISTICS, AttentionStatistics, Signals
from surefoot.tune.baseline import Baseline, Recorder
from surefoot.tune.determinacy import PENALTIES, Regression

KEPT = tuple(s for s in STATISTICS if s != "skewness")
MAX_TOKENS = 32


def answer(model: Any, tokenizer: Any, prompts: list[str]) -> list[tuple[str, list[dict[str, np.ndarray]]]]:
    """Greedy answers, each with the numbers of its tokens."""
    # Everything is measured: all statistics, all layers, and the consistency of blocks.
    profile = Profile(
        name="bench",
        probe=ProbeSettings(max_keys=None),
        recipe=Recipe(kind="mean_kurtosis", statistics=KEPT),
        consistency=ConsistencyRule(threshold=-1),
    )
    probe = Probe(model, profile, all_of_logits=True)
    recorder = Recorder(probe)
    texts = [chat_text(tokenizer, p) for p in prompts]
    x = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    with probe.watching(), torch.inference_mode():
        out = model.generate(
            input_ids=x["input_ids"],
            attention_mask=x["attention_mask"],
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            logits_processor=LogitsProcessorList([recorder]),
        )
    given = out[:, x["input_ids"].shape[1] :]
    ends = end_ids(model, tokenizer)
    answers = []
    for b, ids in enumerate(given.tolist()):
        length = next((i + 1 for i, t in enumerate(ids) if t in ends), len(ids))
        tokens = [numbers(signals, b) for signals in recorder.steps[:length]]
        answers.append((tokenizer.decode(ids[:length], skip_special_tokens=True), tokens))
    return answers


def numbers(signals: Signals, row: int) -> dict[str, np.ndarray]:
    """One token's numbers."""
    attention = AttentionStatistics(**{s: signals.attention.get(s)[row : row + 1] for s in KEPT})
    layers, heads = attention.kurtosis.shape[1:]
    logits = signals.logits
    assert logits.top_probability is not None and logits.varentropy is not None
    return {
        "features": features(attention, KEPT).view(len(KEPT), layers, heads).numpy(),
        "raw": torch.stack([attention.get(s)[0] for s in KEPT]).numpy(),
        "kurtosis": signals.kurtosis[row].numpy(),
        "std": signals.std[row].numpy(),
        "consistency": signals.consistency[row].numpy() if signals.consistency is not None else np.nan,
        # Of greedy decoding: the drawn token is the likeliest.
        "logits": torch.stack([logits.top_probability.log(), logits.entropy, logits.varentropy])[:, row].numpy(),
    }


def auroc(values: np.ndarray, truth: np.ndarray) -> float:
    return float(roc_auc_score(truth, values))


def fitted(x: np.ndarray, truth: np.ndarray, groups: np.ndarray, c: float) -> float:
    """AUROC of a logistic regression, cross-validated by passage."""
    model = make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=2000))
    score = cross_val_predict(model, x, truth, groups=groups, cv=GroupKFold(5), method="decision_function")
    return auroc(score, truth)


def spread(values: np.ndarray, window: int = 5) -> np.ndarray:
    """Standard deviation of each window."""
    return np.lib.stride_tricks.sliding_window_view(values, window).std(-1) if len(values) >= window else np.empty(0)


def main() -> None:
    args_parser = parser(__doc__ or "")
    args_parser.add_argument("--data", type=Path, required=True, help="questions in SQuAD format")
    args_parser.add_argument("--questions", type=int, default=400)
    args_parser.add_argument("--batch", type=int, default=8)
    args = args_parser.parse_args()
    model, tokenizer = load(args)
    asked = questions(args.data, args.questions)
    asked.sort(key=lambda q: len(q["prompt"]))
    found: list[tuple[str, list[dict[str, np.ndarray]]]] = []
    for start in track(range(0, len(asked), args.batch), description="answering", disable=args.json):
        found += answer(model, tokenizer, [q["prompt"] for q in asked[start : start + args.batch]])
    truth = np.array([right(text, q["answers"]) for (text, _), q in zip(found, asked, strict=True)])
    passages = {p: i for i, p in enumerate(dict.fromkeys(q["passage"] for q in asked))}
    groups = np.array([passages[q["passage"]] for q in asked])

    def column(name: str) -> list[np.ndarray]:
        return [np.stack([t[name] for t in tokens]) for _, tokens in found]

    kurtosis, std, logits = column("kurtosis"), column("std"), column("logits")
    k, s, consistency = np.concatenate(kurtosis), np.concatenate(std), np.concatenate(column("consistency"))
    jerk = np.concatenate([np.diff(x, n=3) for x in kurtosis])
    windows = np.concatenate([spread(x[:, 1]) for x in logits])
    rows: list[dict[str, Any]] = [
        {"what": "right answers", "value": float(truth.mean()), "n": len(truth)},
        *({"what": f"K a token, {q} %", "value": float(np.percentile(k, q)), "n": len(k)} for q in (5, 50, 95)),
        *({"what": f"std a token, {q} %", "value": float(np.percentile(s, q)), "n": len(k)} for q in (5, 50, 95)),
        {"what": "article's HIGH fires", "value": float(((k > 4.2) & (s < 0.08)).mean()), "n": len(k)},
        {"what": "article's LOW fires", "value": float((k < 2.1).mean()), "n": len(k)},
        {"what": "article's jerk rule fires", "value": float((np.abs(jerk) > 0.15).mean()), "n": len(jerk)},
        {"what": "article's fuse fires, a window", "value": float((windows < 0.03).mean()), "n": len(windows)},
        {
            "what": "article's fuse stops an answer that is right",
            "value": float(np.mean([(spread(x[:, 1]) < 0.03).any() for x, t in zip(logits, truth, strict=True) if t])),
            "n": int(truth.sum()),
        },
        {"what": "article's consistency rule fires", "value": float((consistency < 0.65).mean()), "n": len(k)},
    ]
    mean_logits = np.stack([x.mean(0) for x in logits])
    heads = np.stack([np.stack([t["raw"] for t in tokens]).mean(0).ravel() for _, tokens in found])
    per = heads.shape[1] // len(KEPT)
    scores = {
        "AUROC: mean K": auroc(np.array([x.mean() for x in kurtosis]), truth),
        "AUROC: mean log-probability": auroc(mean_logits[:, 0], truth),
        "AUROC: minus mean entropy": auroc(-mean_logits[:, 1], truth),
        "AUROC: logits, fitted": fitted(mean_logits, truth, groups, 1.0),
        "AUROC: K of each head, fitted": fitted(heads[:, :per], truth, groups, 1e-3),
        "AUROC: all statistics of each head, fitted": fitted(heads, truth, groups, 1e-3),
        "AUROC: all of each head and logits, fitted": fitted(np.hstack([heads, mean_logits]), truth, groups, 1e-3),
    }
    rows += [{"what": name, "value": value, "n": len(truth)} for name, value in scores.items()]
    rows += correlations(model, found, groups, k)
    figures = {"model": identity(model), "data": args.data.name, "max tokens": MAX_TOKENS}
    report(args, "what the signals say", figures, rows)


def correlations(model: Any, found: list[Any], groups: np.ndarray, k: np.ndarray) -> list[dict[str, Any]]:
    """How well attention foretells the entropy of the next token; no labels are used."""
    x = np.concatenate([[t["features"] for t in tokens] for _, tokens in found])
    entropy = np.concatenate([[t["logits"][1] for t in tokens] for _, tokens in found])
    lengths = [len(tokens) for _, tokens in found]
    of = np.repeat(groups, lengths)

    def fit(*names: str) -> float:
        picked = [KEPT.index(n) for n in names]  # type: ignore[arg-type]
        problem = Regression(Baseline(names, x[:, picked], entropy, k, of, of))  # type: ignore[arg-type]
        return max(problem.correlation(tuple(range(problem.layers)), p) for p in PENALTIES)

    rows = {
        "R with entropy: mean K": float(np.corrcoef(k, entropy)[0, 1]),
        "R with entropy: K of each head": fit("kurtosis"),
        "R with entropy: K, mean and std of each head": fit("kurtosis", "mean", "std"),
        "R with entropy: attention entropy of each head": fit("entropy"),
        "R with entropy: all statistics of each head": fit(*KEPT),
    }
    default = load_profile("careful")
    if default.model == identity(model):
        # Calibrated on other prompts: how well the recipe that is shipped carries over.
        picked = [KEPT.index(n) for n in default.recipe.statistics]
        layers = list(default.probe.layers)
        flat = x[:, picked][:, :, layers].reshape(len(x), -1)
        z = (flat - np.array(default.recipe.center)) / np.array(default.recipe.scale)
        predicted = np.clip(z, -default.recipe.clip, default.recipe.clip) @ np.array(default.recipe.weights)
        rows["R with entropy: the shipped recipe, as it is"] = float(np.corrcoef(predicted, entropy)[0, 1])
    return [{"what": name, "value": value, "n": len(entropy)} for name, value in rows.items()]


if __name__ == "__main__":
    main()
