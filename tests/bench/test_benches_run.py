"""Every benchmark runs and prints one JSON object with both sides; what it measures is nobody's test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
TOWNS = ["Arle", "Borne", "Cawl", "Drin", "Eske", "Fenn", "Gorse", "Holm"]


@pytest.fixture(scope="module")
def squad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Passages in SQuAD's format, each with a question that is hardly missed and one that nobody gets right."""

    def article(i: int, town: str) -> dict[str, Any]:
        year = str(1700 + i)
        easy = [{"text": text} for text in (year, town, "bridge", "built", "river")]
        questions = [
            {"question": f"When was the bridge of {town} built?", "answers": easy},
            {"question": f"Who built the mill of {town}?", "answers": [{"text": "xyzzy"}]},
        ]
        passage = f"{town} lies by a river. Its bridge was built in {year}, and its mill some years later."
        return {"paragraphs": [{"context": passage, "qas": questions}]}

    path = tmp_path_factory.mktemp("data") / "squad.json"
    path.write_text(json.dumps({"data": [article(i, town) for i, town in enumerate(TOWNS)]}))
    return path


SMALL = {
    "controller": ["--slots", "4"],
    "engine": ["--context", "40", "--long-context", "80", "--tokens", "3", "--rounds", "1"],
    "serve": ["--rounds", "2", "--streams", "6", "--tokens", "2", "--requests", "10"],
    "signals": ["--questions", "16"],
    "sampling": ["--questions", "2", "--seeds", "2", "--only", "greedy", "careful"],
}


@pytest.mark.parametrize("name", sorted(SMALL))
def test_it_runs(name: str, squad: Path, smollm: Any) -> None:
    data = ["--data", str(squad)] if name in ("signals", "sampling") else []
    command = [sys.executable, str(BENCH / f"{name}.py"), "--json", *SMALL[name], *data]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["benchmark"] and len(said["rows"]) >= 2


def test_all_are_here() -> None:
    assert {p.stem for p in BENCH.glob("*.py")} - {"common"} == set(SMALL)
