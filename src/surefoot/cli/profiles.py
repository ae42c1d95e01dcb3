"""``surefoot profiles``: what comes built in."""

from __future__ import annotations

import json
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="List and show profiles.")


@app.command("list")
def list_profiles(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the built-in profiles."""
    from surefoot.control import builtin_profiles, load_profile

    profiles = [load_profile(name) for name in builtin_profiles()]
    if as_json:
        rows = [p.model_dump(include={"name", "version", "model", "description"}) for p in profiles]
        typer.echo(json.dumps({"profiles": rows}))
        return
    for p in profiles:
        typer.echo(f"{p.name}  for {p.model or 'any model'}\n    {p.description}")


@app.command("show")
def show(profile: Annotated[str, typer.Argument(help="A built-in name or a JSON file.")]) -> None:
    """Check a profile and print it as JSON."""
    from surefoot.control import load_profile

    typer.echo(load_profile(profile).dump(), nl=False)
