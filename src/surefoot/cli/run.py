"""``surefoot run``: one answer, with its footing."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli.files import check_writable
from surefoot.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from surefoot.control import Profile
    from surefoot.engines.transformers import TransformersGeneration

MAX_PROMPT = 10_000_000
COLOURS = {"NEUTRAL": "", "LOW": "yellow", "HIGH": "green", "SHOCK": "magenta", "FUSE": "bold red"}


def run(
    prompt: Annotated[str, typer.Argument(help="What to ask; '-' reads it from standard input.")],
    model: Annotated[str, typer.Option(help="A name from `surefoot models list`, or a model folder.")] = "smollm2",
    profile: Annotated[
        str | None,
        typer.Option(help="A name from `surefoot profiles list`, or a JSON file. [default: the model's 'careful', "
                          "or 'observe' for a model without a calibrated profile]"),
    ] = None,
    temperature: Annotated[float, typer.Option(help="The request's own temperature; 0 is greedy.")] = 0.7,
    top_p: Annotated[float, typer.Option(help="The request's own top-p; 1 is off.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="The request's own top-k.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 256,
    seed: Annotated[int | None, typer.Option(help="Makes sampling reproducible.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="A string that ends the answer; may be repeated.")] = None,
    measure_only: Annotated[bool, typer.Option("--measure-only", help="Report states, override nothing.")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Also print a table with every token.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Write one row a token to this Parquet file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: text, tokens, summary.")] = False,
) -> None:  # fmt: skip
    """Answer PROMPT, coloured by the state of each token, then say what was measured and overridden.

    yellow: LOW, less determinate than the profile's limit. green: HIGH. magenta: SHOCK. red: FUSE, stopped.
    """
    from rich.console import Console

    from surefoot.engines.base import Request
    from surefoot.engines.transformers import TransformersEngine
    from surefoot.models import load_model

    if prompt == "-":
        prompt = sys.stdin.read(MAX_PROMPT + 1)
        if len(prompt) > MAX_PROMPT:
            raise InputError(
                f"the prompt has more than {MAX_PROMPT:,} characters.", "No model here takes so long a one."
            )
    if trace is not None:
        check_writable(trace, "--trace")
    chosen = _profile(profile, model)
    request = Request(
        prompt, chosen, max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed,
        stop=tuple(stop or ()), acting=not measure_only,
    )  # fmt: skip
    engine = TransformersEngine(*load_model(model, lambda step: typer.echo(step, err=True)))
    if profile is None and chosen.name == "observe":
        typer.echo(
            f"{engine.model_name} has no calibrated profile, so nothing is steadied. "
            f"Make one: surefoot calibrate --model {model}", err=True,
        )  # fmt: skip
    generation = engine.stream(request)
    console = Console(highlight=False, quiet=as_json)
    start = time.perf_counter()
    interrupted = False
    try:
        for step in generation:
            colour = COLOURS[step.token.state] if step.token else ""
            console.print(step.text, end="", style=colour, markup=False, soft_wrap=True)
    except KeyboardInterrupt:
        generation.cancel()
        generation.finish_reason = "cancelled"
        interrupted = True
    summary = _summary(generation, engine.model_name, time.perf_counter() - start)
    if as_json:
        typer.echo(json.dumps({"text": generation.text, "tokens": generation.trace.rows(), "summary": summary}))
    else:
        console.print("\n")
        if tokens:
            _print_tokens(console, generation)
        _print_summary(console, summary)
    if trace is not None:
        generation.trace.write(trace)
    if interrupted:
        raise typer.Exit(130)


def _profile(name: str | None, model: str) -> Profile:
    from surefoot.control import load_profile
    from surefoot.models import DEFAULT_MODEL

    return load_profile(("careful" if model == DEFAULT_MODEL else "observe") if name is None else name)


def _summary(generation: TransformersGeneration, model: str, seconds: float) -> dict[str, Any]:
    ledger = generation.ledger()
    return {
        "model": model,
        "profile": generation.trace.profile.name if generation.trace.profile else None,
        "finish_reason": generation.finish_reason,
        "prompt_tokens": generation.prompt_tokens,
        **generation.trace.summary(),
        "decided": ledger.decided,
        "applied": ledger.applied,
        "drop_rate": ledger.drop_rate,
        "seconds": round(seconds, 3),
    }


def _print_summary(console: Console, summary: dict[str, Any]) -> None:
    from rich.table import Table

    count = summary["tokens"]
    states = Table(title=f"{summary['model']}, profile '{summary['profile']}'", title_justify="left")
    states.add_column("state")
    states.add_column("tokens", justify="right")
    states.add_column("share", justify="right")
    for state, n in summary["states"].items():
        states.add_row(state, str(n), f"{n / max(count, 1):.0%}", style=COLOURS[state])
    console.print(states)
    values = Table()
    for column in ("per token", "5 %", "median", "95 %"):
        values.add_column(column, justify="left" if column == "per token" else "right")
    for name, label in (("kurtosis", "kurtosis K"), ("determinacy", "determinacy"), ("entropy", "entropy, nats")):
        q = summary[name]
        values.add_row(label, *(f"{q[p]:.2f}" if q else "-" for p in ("p5", "p50", "p95")))
    console.print(values)
    console.print(
        f"overrides: {summary['decided']} decided, {summary['applied']} applied, drop rate {summary['drop_rate']:.2%}; "
        f"{summary['resampled']} resampled\n"
        f"ended by: {summary['finish_reason']}; {count} tokens in {summary['seconds']:.1f} s"
    )


def _print_tokens(console: Console, generation: TransformersGeneration) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("token", "K", "std", "entropy", "determ.", "state", "T", "top-p", "reason"):
        words = column in ("token", "state", "reason")
        table.add_column(column, justify="left" if words else "right", no_wrap=column != "reason")
    for t in generation.trace.tokens:
        numbers = (t.kurtosis, t.std, t.entropy, t.determinacy)
        table.add_row(
            Text(repr(t.text)[1:-1]), *("-" if x is None else f"{x:.3g}" for x in numbers), t.state,
            f"{t.temperature:.2g}", f"{t.top_p:.2g}", t.reason, style=COLOURS[t.state],
        )  # fmt: skip
    console.print(table)
