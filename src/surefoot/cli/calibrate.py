"""``surefoot calibrate``: a profile for any model, without labels."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from surefoot.cli.files import check_writable
from surefoot.errors import InputError

DEFAULT_STATISTICS = "kurtosis,mean,std"


class Kind(StrEnum):
    """Which actions the states get."""

    CAREFUL = "careful"
    CREATIVE = "creative"


def calibrate(
    model: Annotated[str, typer.Option(help="A name from `surefoot models list`, or a model folder.")] = "smollm2",
    data: Annotated[
        Path | None,
        typer.Option(help="Prompts to answer (.jsonl with 'prompt', SQuAD .json) or any text file to read. "
                          "[default: 240 prompts that come with surefoot]"),
    ] = None,
    prompts: Annotated[bool, typer.Option("--prompts", help="The text file holds one prompt a line.")] = False,
    kind: Annotated[
        Kind, typer.Option(help="careful: cooler where unsure. creative: the article's direction.")
    ] = Kind.CAREFUL,
    statistics: Annotated[
        str, typer.Option(help="What of each head the score is made from; the moments cost nothing extra. Known: "
                               "kurtosis, mean, std, skewness, entropy, previous, sink."),
    ] = DEFAULT_STATISTICS,
    limit: Annotated[int | None, typer.Option(help="Use so many items, spread evenly over the file.")] = None,
    batch: Annotated[int, typer.Option(help="Prompts answered together.")] = 8,
    seed: Annotated[int, typer.Option(help="For the sampling of answers.")] = 0,
    name: Annotated[str | None, typer.Option(help="The profile's name. [default: that of the file]")] = None,
    out: Annotated[Path, typer.Option(help="Where to write the profile.")] = Path("profile.json"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with the figures of the fit.")] = False,
) -> None:  # fmt: skip
    """Make a profile for a model from prompts or text; no labels are needed.

    Fits the determinacy score (a ridge regression from statistics of each attention head to the model's own next-token
    entropy, cross-validated by passage), chooses the smallest set of layers that is as good as all of them, and sets
    thresholds as quantiles of that score.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from surefoot.engines.identity import identity
    from surefoot.models import load_model
    from surefoot.signals import STATISTICS
    from surefoot.tune.baseline import record_baseline
    from surefoot.tune.calibrate import make_profile
    from surefoot.tune.data import load_corpus
    from surefoot.tune.determinacy import fit_determinacy

    wanted = tuple(s for s in STATISTICS if s in {w.strip() for w in statistics.split(",")})
    if len(wanted) != len(statistics.split(",")):
        raise InputError(f"--statistics {statistics}: unknown or repeated.", f"Known: {', '.join(STATISTICS)}.")
    check_writable(out, "--out")
    if not 0 < len(name or out.stem) <= 100:
        raise InputError("a profile's name has 1 to 100 characters.", "Give one with --name.")
    if not 0 <= seed < 2**63:
        raise InputError(f"seed must be from 0 to 2**63 - 1, got {seed}.")
    corpus = load_corpus(data, one_prompt_per_line=prompts, limit=limit)
    loaded, tokenizer = load_model(model, lambda step: typer.echo(step, err=True))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=as_json) as progress:
        task = progress.add_task("reading" if corpus.running_text else "answering", total=len(corpus.items))
        baseline = record_baseline(
            loaded, tokenizer, corpus, statistics=wanted, batch=batch, seed=seed,
            progress=lambda done: progress.update(task, completed=done),
        )  # fmt: skip
        fit = fit_determinacy(baseline, lambda step: progress.update(task, description=step))
    dtype = str(loaded.dtype).removeprefix("torch.")
    profile = make_profile(kind.value, name or out.stem, identity(loaded), dtype, corpus, baseline, fit)
    try:
        out.write_text(profile.dump(), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror or error}.") from error
    figures = {
        "profile": str(out),
        "model": profile.model,
        "tokens": len(baseline.entropy),
        "layers": list(fit.layers),
        "correlation": fit.correlation,
        "correlation_all_layers": fit.correlation_all,
        "low": profile.low.threshold if profile.low else None,
        "high": profile.high.threshold if profile.high else None,
    }
    if as_json:
        typer.echo(json.dumps(figures))
        return
    typer.echo(
        f"{len(baseline.entropy)} tokens; determinacy from layers {', '.join(map(str, fit.layers))} correlates with "
        f"minus the entropy at R = {fit.correlation:.3f} (all layers: {fit.correlation_all:.3f}), cross-validated.\n"
        f'Wrote {out}. Use it: surefoot run --model {model} --profile {out} "..."'
    )
