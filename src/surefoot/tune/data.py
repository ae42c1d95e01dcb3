"""Reading prompts and text to calibrate on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from surefoot.errors import InputError

MAX_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Corpus:
    """What to calibrate on.

    Attributes
    ----------
    name : str
        File name, for the profile's provenance.
    sha256 : str
        Hash of the file.
    items : list of str
        Prompts to answer, or passages to read.
    groups : list of str
        For each item, what it shares with others (a passage): cross-validation never splits a group.
    running_text : bool
        The items are read as they are instead of being answered.
    """

    name: str
    sha256: str
    items: list[str]
    groups: list[str]
    running_text: bool


def load_corpus(path: Path | None, *, one_prompt_per_line: bool = False, limit: int | None = None) -> Corpus:
    """Read a corpus.

    Parameters
    ----------
    path : Path or None
        ``.jsonl`` (one object a line with "prompt", or "question" and perhaps "context"; "group" is optional), SQuAD
        ``.json``, or any text file. None: the prompts that come with surefoot.
    one_prompt_per_line : bool
        The text file holds prompts to answer, one a line, instead of running text.
    limit : int, optional
        Keep so many items, spread evenly over the file.

    Raises
    ------
    InputError
        Unreadable, not UTF-8, malformed (the line is named), too large, or empty.
    """
    if path is None:
        path = Path(str(resources.files("surefoot") / "prompts.jsonl"))
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path} is larger than {MAX_BYTES >> 20} MiB.", "A few thousand prompts are plenty.")
        raw = path.read_bytes()
        text = raw.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start}).", "Convert it, e.g. with iconv.") from error
    running_text = False
    if path.suffix == ".jsonl":
        pairs = _jsonl(path, text)
    elif path.suffix == ".json":
        pairs = _squad(path, text)
    elif one_prompt_per_line:
        pairs = [(line.strip(), line.strip()) for line in text.splitlines() if line.strip()]
    else:
        running_text = True
        pairs = [(p.strip(), p.strip()) for p in text.split("\n\n") if p.strip()]
    if not pairs:
        raise InputError(f"{path} holds no prompt and no text.")
    if limit is not None and limit < 1:
        raise InputError(f"the limit must be at least 1, got {limit}.")
    if limit is not None and limit < len(pairs):
        pairs = [pairs[i * len(pairs) // limit] for i in range(limit)]
    items, groups = zip(*pairs, strict=True)
    try:
        "".join(items).encode()
    except UnicodeEncodeError as error:  # an escape like \\ud800 in JSON
        raise InputError(f"{path} holds a text that is not valid Unicode: {error.reason}.") from error
    return Corpus(path.name, hashlib.sha256(raw).hexdigest(), list(items), list(groups), running_text)


def question_prompt(question: str, context: str) -> str:
    """The prompt for a question about a passage."""
    return f"Answer the question from the passage, in a few words.\n\nPassage: {context}\n\nQuestion: {question}"


def _jsonl(path: Path, text: str) -> list[tuple[str, str]]:
    pairs = []
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: JSON strings may hold U+2028
        if not line.strip():
            continue
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: not JSON ({error}).") from error
        prompt = row.get("prompt") if isinstance(row, dict) else None
        if prompt is None and isinstance(row, dict) and isinstance(row.get("question"), str):
            context = row.get("context")
            prompt = question_prompt(row["question"], context) if isinstance(context, str) else row["question"]
            row.setdefault("group", context)
        if not isinstance(prompt, str) or not prompt.strip():
            raise InputError(
                f"{path}, line {number}: no text in 'prompt'.",
                'Each line is an object like {"prompt": "..."} or {"question": "...", "context": "..."}.',
            )
        group = row.get("group")
        pairs.append((prompt, prompt if group is None else str(group)))
    return pairs


def _squad(path: Path, text: str) -> list[tuple[str, str]]:
    try:
        return [
            (question_prompt(qa["question"], paragraph["context"]), paragraph["context"])
            for article in json.loads(text)["data"]
            for paragraph in article["paragraphs"]
            for qa in paragraph["qas"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path} is not in SQuAD format ({type(error).__name__}: {error}).",
            "Other data goes into .jsonl: one object a line with 'prompt'.",
        ) from error
