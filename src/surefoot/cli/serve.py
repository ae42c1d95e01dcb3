"""``surefoot serve``: the two APIs and the playground."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.errors import InputError

if TYPE_CHECKING:
    from surefoot.serve.server import Server
    from surefoot.serve.settings import Settings


def serve(
    model: Annotated[str, typer.Option(help="A name from `surefoot models list`, or a model folder.")] = "smollm2",
    host: Annotated[str, typer.Option(help="Where to listen. Other than loopback needs API keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free one.")] = 8000,
    profile: Annotated[
        str | None, typer.Option(help="Profile of every domain not named by --domain; a name or a JSON file.")
    ] = None,
    domain: Annotated[
        list[str] | None, typer.Option(help="Profile of one domain, as legal=careful or legal=mine.json; repeatable.")
    ] = None,
    ab: Annotated[
        list[str] | None, typer.Option(help="Give a share of the traffic to a profile, as article=0.1; repeatable.")
    ] = None,
    traces: Annotated[Path | None, typer.Option(help="Keep a line of JSON an answer in this folder.")] = None,
    slots: Annotated[int, typer.Option(help="Answers in the making at a time.")] = 4,
    queue: Annotated[int, typer.Option(help="Requests that may wait.")] = 256,
    config: Annotated[Path | None, typer.Option(help="TOML file with any setting (docs/serving.md).")] = None,
    off: Annotated[bool, typer.Option("--off", help="Measure and override nothing.")] = False,
) -> None:
    """Serve /v1/messages, /v1/chat/completions, /metrics and the playground.

    API keys come from SUREFOOT_API_KEYS (separated by commas) and SUREFOOT_ADMIN_KEY; without any, the server listens
    on this machine only.
    """
    import logging

    from surefoot.serve.start import serve as start

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    settings = _settings(
        _file(config),
        model=model, host=host, port=port, profile=profile, domains=_pairs(domain, "--domain"),
        ab={name: _share(value) for name, value in _pairs(ab, "--ab").items()}, traces=traces, slots=slots, queue=queue,
        steady=not off,
    )  # fmt: skip
    start(settings, _greet)


def _file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"--config {path}: {error}.") from error


def _settings(file: dict[str, Any], **flags: Any) -> Settings:
    from pydantic import ValidationError

    from surefoot.serve.settings import Settings

    defaults = Settings()
    given = {k: v for k, v in flags.items() if v not in (None, {}) and v != getattr(defaults, k)}
    keys = [k.strip() for k in os.environ.get("SUREFOOT_API_KEYS", "").split(",") if k.strip()]
    secret = {"api_keys": tuple(keys), "admin_key": os.environ.get("SUREFOOT_ADMIN_KEY") or None}
    try:
        return Settings(**{**file, **given, **{k: v for k, v in secret.items() if v}})
    except ValidationError as error:
        # Without the input: it may hold a key.
        lines = [f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in error.errors()]
        raise InputError("these settings cannot be used:\n  " + "\n  ".join(lines)) from None


def _pairs(given: list[str] | None, flag: str) -> dict[str, str]:
    pairs = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InputError(f"{flag} {text}: write name=value.")
        pairs[name] = value
    return pairs


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--ab: '{text}' is no share of the traffic; write a number between 0 and 1.") from None


def _greet(server: Server, port: int) -> None:
    host = server.settings.host
    shown = f"[{host}]" if ":" in host else host
    base = f"http://{shown}:{port}"
    keyed = bool(server.settings.api_keys)
    key, python_key = ("$SUREFOOT_API_KEY", 'os.environ["SUREFOOT_API_KEY"]') if keyed else ("none", '"none"')
    for warning in server.profiles.warnings:
        typer.echo(f"warning: {warning}", err=True)
    used = ", ".join(f"{domain}: {name}" for domain, name in server.profiles.domains.items())
    typer.echo(
        f"""{server.model_id} is served. Playground: {base}/
Profiles: {used}. API: {base}/docs. Stop: Ctrl-C.

curl -s {base}/v1/messages -H 'content-type: application/json' -H "x-api-key: {key}" -d '{{
  "model": "any", "max_tokens": 80, "system": "SSP:domain=legal;confidence=high;tolerance=strict;fallback=transparent",
  "messages": [{{"role": "user", "content": "What does a notary do?"}}]}}'

python - <<'EOF'
import os, anthropic  # pip install anthropic
client = anthropic.Anthropic(base_url="{base}", api_key={python_key})
message = client.messages.create(model="any", max_tokens=80, system="SSP:domain=legal",
                                 messages=[{{"role": "user", "content": "What does a notary do?"}}])
print(message.content[0].text, message.surefoot["states"])
EOF
"""
    )
