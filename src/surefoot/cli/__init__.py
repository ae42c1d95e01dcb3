"""The command line. Commands import what they need when they run, so that ``--help`` is fast."""

from __future__ import annotations

import io
import sys
import warnings
from typing import Annotated

import typer

from surefoot import __version__
from surefoot.cli import ab, calibrate, models, profiles, run, serve
from surefoot.errors import SurefootError

app = typer.Typer(
    name="surefoot",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Sure-footed decoding for open-weight language models.

    surefoot measures a model's attention and logits while it decodes, decides from them how each token is sampled, and
    shows why. Start with: surefoot run "What is the capital of France?"

    Exit codes: 0 done, 1 other errors, 2 wrong usage, 3 profile, 4 model, 5 input, 6 the model's logits are not finite,
    130 interrupted.""",
)
app.command("run")(run.run)
app.command("serve")(serve.serve)
app.command("calibrate")(calibrate.calibrate)
app.add_typer(models.app, name="models")
app.add_typer(ab.app, name="ab")
app.add_typer(profiles.app, name="profiles")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"surefoot {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; errors of our own are printed without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character still gets the rest
    warnings.showwarning = lambda message, *where, **more: typer.echo(f"warning: {message}", err=True)
    try:
        app()
    except SurefootError as error:
        typer.secho(f"error: {error.message}", err=True, fg=typer.colors.RED)
        if error.hint:
            typer.echo(error.hint, err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        if isinstance(error, BrokenPipeError) or error.errno is None:
            raise
        typer.secho(f"error: {error}", err=True, fg=typer.colors.RED)
        sys.exit(1)
