"""``surefoot serve`` as a process: what it prints works, and it ends well."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

QUESTION = [{"role": "user", "content": "Write a very long story about a ship."}]


@contextmanager
def served(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The process, its address and what it printed."""
    command = [sys.executable, "-c", "from surefoot.cli import main; main()", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | environment,
    )  # fmt: skip
    assert process.stdout is not None
    printed = ""
    try:
        while "EOF\n" not in printed.partition("EOF'")[2]:
            line = process.stdout.readline()
            assert line, printed
            printed += line
        address = re.search(r"Playground: (http://\S+?)/\s", printed)
        assert address
        yield process, address[1], printed
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def running(smollm: Any) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    with served(SUREFOOT_API_KEYS="key-of-ann") as found:
        yield found


def paste(printed: str, begin: str, end: str) -> str:
    """Run what was printed between two marks in a shell."""
    script = begin + printed.partition(begin)[2].partition(end)[0] + end
    environment = os.environ | {"SUREFOOT_API_KEY": "key-of-ann"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_printed_snippets_work_when_pasted(running: tuple[Any, str, str]) -> None:
    _, _, printed = running
    said = paste(printed, "curl", "}]}'\n")
    assert '"domain":"legal"' in said and '"uncertain":' in said
    assert "'NEUTRAL':" in paste(printed, "python - <<'EOF'", "\nEOF\n")
    assert "key-of-ann" not in printed


def test_a_stop_finishes_the_streams_in_flight(running: tuple[subprocess.Popen[str], str, str]) -> None:
    process, address, _ = running
    headers = {"x-api-key": "key-of-ann"}
    body = {"model": "any", "max_tokens": 60, "stream": True, "messages": QUESTION}
    lines: list[str] = []
    begun = threading.Event()

    def read() -> None:
        with httpx.stream("POST", f"{address}/v1/messages", json=body, headers=headers, timeout=60) as response:
            for line in response.iter_lines():
                lines.append(line)
                begun.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(30)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    with pytest.raises((httpx.ConnectError, httpx.HTTPStatusError)):
        httpx.get(f"{address}/ready").raise_for_status()
    thread.join(60)
    assert "event: message_stop" in lines
    assert sum("content_block_delta" in line and line.startswith("data") for line in lines) > 20
    assert process.wait(30) in (0, -signal.SIGTERM)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--host", "0.0.0.0"], "SUREFOOT_API_KEYS"),
        (["--ab", "article"], "--ab article: write name=value"),
        (["--ab", "article=2"], "between 0 and 1"),
        (["--domain", "law=careful"], "there is no domain 'law'"),
        (["--profile", "nobody"], "no such profile or file"),
        (["--slots", "0"], "slots"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_at_start(smollm: Any, arguments: list[str], named: str) -> None:
    command = [sys.executable, "-c", "from surefoot.cli import main; main()", "serve", "--port", "0", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (3, 5) and named in done.stderr and "Traceback" not in done.stderr


def test_after_the_grace_period_answers_end_as_they_are(smollm: Any, tmp_path: Path) -> None:
    (tmp_path / "surefoot.toml").write_text("grace_seconds = 1.0\nslots = 1\n")
    with served("--config", str(tmp_path / "surefoot.toml")) as (process, address, _):
        body = {"model": "any", "max_tokens": 2000, "stream": True, "messages": QUESTION}
        lines: list[str] = []
        with httpx.stream("POST", f"{address}/v1/messages", json=body, timeout=60) as response:
            for line in response.iter_lines():
                if not lines:
                    process.send_signal(signal.SIGTERM)
                lines.append(line)
        assert "event: message_stop" in lines
        assert any('"ended_by":"shutdown"' in line for line in lines)
        assert process.wait(30) in (0, -signal.SIGTERM)
