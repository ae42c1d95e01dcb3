"""Files that a command will write: better refused before the work than after it."""

from __future__ import annotations

import os
from pathlib import Path

from surefoot.errors import InputError


def check_writable(path: Path, option: str) -> None:
    """Raise `InputError` when ``path`` cannot be written; ``option`` is where it came from."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise InputError(f"the folder of {option} {path} does not exist.")
    if path.is_dir():
        raise InputError(f"{option} {path} is a folder; name a file.")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise InputError(f"{option} {path} cannot be written.")
