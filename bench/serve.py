"""What HTTP adds: time to the first token, many streams at once, memory over many requests.

python bench/serve.py
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from rich.progress import track

from common import load, parser, report
from surefoot.control import load_profile
from surefoot.engines.base import Request
from surefoot.engines.transformers import TransformersEngine

MESSAGES = [{"role": "user", "content": "What does a notary do?"}]


def start(model: str) -> tuple[subprocess.Popen[str], str]:
    """A server in a process of its own, and its address."""
    command = [sys.executable, "-c", "from surefoot.cli import main; main()", "serve", "--port", "0", "--model", model]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"Playground: (http://\S+?)/\s", line)
        if found:
            return process, found[1]
    raise RuntimeError("the server did not start; `surefoot serve` says why")


def over_http(client: httpx.Client, address: str) -> float:
    """Milliseconds to the first token over HTTP."""
    body = {"model": "any", "max_tokens": 2, "stream": True, "surefoot": {"seed": 0}, "messages": MESSAGES}
    begun, first = time.perf_counter(), 0.0
    with client.stream("POST", f"{address}/v1/messages", json=body) as response:
        for line in response.iter_lines():
            if not first and line.startswith("data:") and "text_delta" in line:
                first = time.perf_counter()
    return (first - begun) * 1e3


def in_process(engine: TransformersEngine, profile: Any) -> float:
    """Milliseconds to the first token without HTTP."""
    begun = time.perf_counter()
    steps = iter(engine.stream(Request(MESSAGES, profile, max_tokens=2, temperature=1.0, seed=0)))
    next(steps)
    first = time.perf_counter()
    for _ in steps:
        pass
    return (first - begun) * 1e3


async def at_once(address: str, streams: int, tokens: int) -> list[tuple[int, bool]]:
    """Tokens that each of many streams got, and whether it ended as it should."""

    async def one(client: httpx.AsyncClient, i: int) -> tuple[int, bool]:
        body = {"model": "any", "max_tokens": tokens, "stream": True, "surefoot": {"seed": i}, "messages": MESSAGES}
        last: dict[str, Any] = {}
        used = 0
        async with client.stream("POST", f"{address}/v1/messages", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    last = json.loads(line[6:])
                    used = last.get("usage", {}).get("output_tokens", used)
        return used, last.get("type") == "message_stop"

    limits = httpx.Limits(max_connections=streams)
    async with httpx.AsyncClient(timeout=1200, limits=limits) as client:
        return await asyncio.gather(*(one(client, i) for i in range(streams)))


def resident_mib(pid: int) -> float:
    """Resident memory of a process (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+(\d+)", status)
    assert found is not None
    return int(found[1]) / 1024


def main() -> None:
    args_parser = parser(__doc__ or "")
    args_parser.add_argument("--rounds", type=int, default=40)
    args_parser.add_argument("--streams", type=int, default=200)
    args_parser.add_argument("--tokens", type=int, default=8)
    args_parser.add_argument("--requests", type=int, default=1000)
    args = args_parser.parse_args()
    model, tokenizer = load(args)
    engine = TransformersEngine(model, tokenizer)
    profile = load_profile("careful" if args.model == "smollm2" else "observe")
    process, address = start(args.model)
    try:
        with httpx.Client(timeout=120) as client:
            http, direct = [], []
            for i in track(range(args.rounds + 3), description="first token", disable=args.json):
                pair = over_http(client, address), in_process(engine, profile)
                if i >= 3:
                    http.append(pair[0])
                    direct.append(pair[1])
            begun = time.perf_counter()
            ended = asyncio.run(at_once(address, args.streams, args.tokens))
            seconds = time.perf_counter() - begun
            memory = {}
            for i in track(range(args.requests), description="memory", disable=args.json):
                body = {"model": "any", "max_tokens": 2, "messages": MESSAGES}
                client.post(f"{address}/v1/messages", json=body).raise_for_status()
                if i + 1 in (args.requests // 10, args.requests):
                    memory[i + 1] = resident_mib(process.pid)
    finally:
        process.terminate()
        process.wait(60)
    early, late = memory[args.requests // 10], memory[args.requests]
    figures = {
        "HTTP adds to the first token, ms (median of differences)": statistics.median(
            h - d for h, d in zip(http, direct, strict=True)
        ),
        "streams at once": args.streams,
        "streams that ended as they should": sum(fine for _, fine in ended),
        "tokens/s of all streams together": sum(n for n, _ in ended) / seconds,
        f"memory after {args.requests // 10} requests, MiB": early,
        f"memory after {args.requests} requests, MiB": late,
        "growth between them": late / early - 1,
        "cores": os.cpu_count(),
    }
    rows = [
        {"side": "over HTTP", "first token, ms": statistics.median(http)},
        {"side": "in process", "first token, ms": statistics.median(direct)},
    ]
    report(args, "what serving adds", figures, rows)


if __name__ == "__main__":
    main()
