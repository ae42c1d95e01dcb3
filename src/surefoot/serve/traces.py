"""What is kept of answers: in memory for ``/v1/traces/{id}``, and as lines of JSON for reports."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from surefoot.errors import InputError

log = logging.getLogger("surefoot.serve")
KeepText = Literal["none", "answers", "all"]


class TraceStore:
    """Traces by id, each readable by its owner only.

    Parameters
    ----------
    limit : int
        Traces in memory; the oldest goes first.
    days : float
        Older ones are deleted, in memory and in the folder.
    folder : Path, optional
        One file of JSON lines a day; ``feedback`` lines refer to their trace.
    keep_text : str
        none: no token's text either; answers; all: also the prompt.
    """

    def __init__(self, limit: int, days: float, folder: Path | None, keep_text: KeepText) -> None:
        self._limit, self._seconds, self._folder, self._keep_text = limit, days * 86400, folder, keep_text
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, dict[str, Any]] = OrderedDict()
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"cannot keep traces in {folder}: {error.strerror or error}.") from error
            self._sweep_folder()

    def add(self, owner: str, record: dict[str, Any]) -> None:
        """Keep a record; it has an ``id`` and, as far as the settings allow, ``prompt``, ``text`` and ``tokens``."""
        record = {"time": time.time(), **record}
        if self._keep_text != "all":
            record.pop("prompt", None)
        if self._keep_text == "none":
            for words in ("text", "uncertain"):
                record.pop(words, None)
            record["tokens"] = [{k: v for k, v in t.items() if k not in ("id", "text")} for t in record["tokens"]]
        with self._lock:
            self._kept[record["id"]] = {**record, "owner": owner}
            oldest = record["time"] - self._seconds
            while len(self._kept) > self._limit or next(iter(self._kept.values()))["time"] < oldest:
                self._kept.popitem(last=False)
        self._append("trace", record)

    def get(self, owner: str, trace_id: str) -> dict[str, Any] | None:
        """A record of ``owner``; None when there is none, or it is somebody else's."""
        with self._lock:
            record = self._kept.get(trace_id)
        if record is None or record["owner"] != owner or record["time"] < time.time() - self._seconds:
            return None
        return {k: v for k, v in record.items() if k != "owner"}

    def judge(self, owner: str, trace_id: str, feedback: dict[str, Any]) -> bool:
        """Add feedback to a record of ``owner``; False when there is none. The last word counts."""
        if self.get(owner, trace_id) is None:
            return False
        with self._lock:
            record = self._kept.get(trace_id)
            if record is not None:
                record["feedback"] = feedback
        self._append("feedback", {"time": time.time(), "id": trace_id, **feedback})
        return True

    def _append(self, kind: str, record: dict[str, Any]) -> None:
        if self._folder is None:
            return
        today = datetime.now(UTC).strftime("%Y-%m-%d")
        path = self._folder / f"{today}.jsonl"
        # A line of its own, also behind the half line of a server that was killed; empty lines are skipped.
        line = "\n" + json.dumps({"kind": kind, **record}, ensure_ascii=False) + "\n"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                self._sweep_folder()
            with self._lock, path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(line)
        except OSError as error:
            # The answer matters more than its record.
            log.error("a trace could not be written to %s: %s", path, error)

    def _sweep_folder(self) -> None:
        assert self._folder is not None
        for path in self._folder.glob("????-??-??.jsonl"):
            if path.stat().st_mtime < time.time() - self._seconds:
                path.unlink(missing_ok=True)
