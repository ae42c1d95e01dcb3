"""What watching and steadying cost: tokens a second with surefoot over without, in one run.

python bench/engine.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from rich.progress import track
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import surefoot
from common import load, parser, report
from surefoot.control import Profile, load_profile
from surefoot.control.controller import Controller
from surefoot.engines.base import Request
from surefoot.engines.probe import Probe
from surefoot.engines.transformers import TransformersEngine, TransformersGeneration

SAMPLING = {"temperature": 0.7, "top_p": 1.0}


class Clock(StoppingCriteria):
    """Notes the time of each token."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:  # noqa: D102
        self.at.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    def step_ms(self) -> float:
        """Median time between tokens."""
        return statistics.median(b - a for a, b in zip(self.at, self.at[1:], strict=False)) * 1e3


def generate(model: Any, ids: torch.Tensor, tokens: int, profile: Profile | None) -> float:
    """Milliseconds a token of ``model.generate``."""
    clock = Clock()
    footing = surefoot.attach(model, profile) if profile else None
    try:
        model.generate(
            ids,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=True,
            top_k=0,
            stopping_criteria=StoppingCriteriaList([clock]),
            **SAMPLING,
        )
    finally:
        if footing:
            footing.detach()
    return clock.step_ms()


def stream(engine: TransformersEngine, ids: torch.Tensor, tokens: int, profile: Profile) -> float:
    """Milliseconds a token of our own loop, everything a server needs included."""
    request = Request("x", profile, max_tokens=tokens, temperature=0.7, seed=0)
    clock = Clock()
    engine.ends = set()
    for _ in TransformersGeneration(engine, request, ids):
        clock.at.append(time.perf_counter())
    return clock.step_ms()


@contextmanager
def timed(owner: Any, name: str, spent: list[float]) -> Iterator[None]:
    """Add up the time spent in a method."""
    original = getattr(owner, name)

    def around(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = original(*args, **kwargs)
        spent[0] += time.perf_counter() - start
        return result

    setattr(owner, name, around)
    try:
        yield
    finally:
        setattr(owner, name, original)


def own_ms(model: Any, ids: torch.Tensor, tokens: int, profile: Profile) -> float:
    """Milliseconds a token spent in surefoot's own code: observe, signals, decide."""
    spent = [0.0]
    with timed(Probe, "observe", spent), timed(Probe, "signals", spent), timed(Controller, "decide", spent):
        generate(model, ids, 2, profile)
        before = spent[0]
        generate(model, ids, 2 + tokens, profile)
    return (spent[0] - before) / (2 + tokens) * 1e3


def attention_ms(model: Any, ids: torch.Tensor, tokens: int) -> float:
    """Milliseconds a token spent in attention itself, without surefoot."""
    name = model.config._attn_implementation
    original = ALL_ATTENTION_FUNCTIONS[name]
    times: list[float] = []

    def around(module: Any, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = original(module, query, *args, **kwargs)
        if query.shape[2] == 1:
            times.append(time.perf_counter() - start)
        return result

    ALL_ATTENTION_FUNCTIONS[name] = around
    try:
        generate(model, ids, tokens, None)
    finally:
        del ALL_ATTENTION_FUNCTIONS[name]
    return statistics.median(times) * model.config.num_hidden_layers * 1e3


def seconds(command: list[str], runs: int = 5) -> float:
    """Median wall time of a command."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    args_parser = parser(__doc__ or "")
    args_parser.add_argument("--context", type=int, default=512)
    args_parser.add_argument("--long-context", type=int, default=6144)
    args_parser.add_argument("--tokens", type=int, default=48)
    args_parser.add_argument("--rounds", type=int, default=7)
    args = args_parser.parse_args()
    import transformers  # noqa: F401 the libraries' own import is not the model's loading

    start = time.perf_counter()
    model, tokenizer = load(args)
    ready = time.perf_counter() - start
    engine = TransformersEngine(model, tokenizer)
    torch.manual_seed(0)
    ids = torch.randint(100, model.config.vocab_size - 100, (1, args.context))
    default = load_profile("careful")
    if default.model != engine.model_name:
        default = load_profile("observe")
    everything = default.model_copy(
        update={"probe": load_profile("observe").probe, "recipe": load_profile("observe").recipe}
    )
    sides: dict[str, Callable[[], float]] = {
        "plain generate": lambda: generate(model, ids, args.tokens, None),
        "attached, default probe set": lambda: generate(model, ids, args.tokens, default),
        "attached, all layers": lambda: generate(model, ids, args.tokens, everything),
        "our stream loop, default probe set": lambda: stream(engine, ids, args.tokens, default),
    }
    for work in sides.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in track(range(args.rounds), description="rounds", disable=args.json):
        for name, work in sides.items():
            times[name].append(work())
    plain = times["plain generate"]
    rows = [
        {
            "side": name,
            "ms a token": statistics.median(values),
            "tokens/s over plain": statistics.median(p / v for p, v in zip(plain, values, strict=True)),
        }
        for name, values in times.items()
    ]
    long = torch.randint(100, model.config.vocab_size - 100, (1, args.long_context))
    short_own, long_own = (own_ms(model, x, args.tokens, default) for x in (ids, long))
    base = statistics.median(plain) - attention_ms(model, ids, args.tokens)
    figures = {
        "own ms a token at short context": short_own,
        "own ms a token at long context, sampled": long_own,
        "cost a token without attention, long over short": (base + long_own) / (base + short_own),
        "keys read at most": default.probe.max_keys,
        "seconds until the model is ready, from the cache": ready,
        "seconds of surefoot --help": seconds(
            [sys.executable, "-c", "from surefoot.cli import main; main()", "--help"]
        ),
        "threads": torch.get_num_threads(),
    }
    report(args, f"cost of watching, context {args.context} and {args.long_context}", figures, rows)


if __name__ == "__main__":
    main()
