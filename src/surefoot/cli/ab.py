"""``surefoot ab``: what an A/B has shown."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from surefoot.evaluate.ab import Estimate

app = typer.Typer(help="Compare the arms of an A/B (`surefoot serve --ab article=0.1 --traces traces/`).")

_LABELS = {
    "accuracy": "right, from feedback",
    "distinct_1": "distinct words",
    "distinct_2": "distinct word pairs",
    "self_bleu": "self-BLEU (lower: more diverse)",
    "seconds": "seconds, median",
    "fuse_rate": "fuse blown",
}


@app.callback()
def _options() -> None:
    pass


@app.command()
def report(
    traces: Annotated[Path, typer.Argument(help="The folder that `surefoot serve --traces` wrote.")],
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare arms: accuracy where there is feedback, diversity, latency, fuse rate, with 95 % intervals."""
    from surefoot.evaluate.ab import ENOUGH, compare, read_arms

    rows = compare(read_arms(traces), seed)
    if as_json:
        typer.echo(json.dumps({"arms": [_plain(row) for row in rows]}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="arms, with 95 % intervals", title_justify="left")
    table.add_column("")
    for row in rows:
        table.add_column(f"{row['arm']} ({row['answers']} answers)", justify="right")
        if "differences" in row:
            table.add_column(f"{row['arm']} − control", justify="right")
    for name, label in _LABELS.items():
        cells = []
        for row in rows:
            cells.append(_cell(row[name]))
            if "differences" in row:
                cells.append(_cell(row["differences"][name], signed=True))
        table.add_row(label, *cells)
    console = Console(highlight=False)
    console.print(table)
    for row in rows:
        if row["too_small"]:
            names = ", ".join(_LABELS[m].partition(" (")[0] for m in row["too_small"])
            console.print(
                f"[yellow]{row['arm']}: too small a sample to tell (fewer than {ENOUGH}): {names}.[/]", soft_wrap=True
            )


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    plain = {k: asdict(v) if hasattr(v, "low") else v for k, v in row.items()}
    if "differences" in row:
        plain["differences"] = {k: asdict(v) for k, v in row["differences"].items()}
    return plain


def _cell(estimate: Estimate, *, signed: bool = False) -> str:
    if estimate.value is None:
        return "–"
    sign = "+" if signed else ""
    text = f"{estimate.value:{sign}.3f}"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{estimate.low:{sign}.3f}, {estimate.high:{sign}.3f}]"
