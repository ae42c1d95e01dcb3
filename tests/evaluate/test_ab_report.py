"""``surefoot ab report`` on traces that a server wrote."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from surefoot.errors import InputError
from surefoot.evaluate.ab import compare, distinct, read_arms, self_bleu
from surefoot.serve.traces import TraceStore

TEXT = "the law says that a notary must witness and sign every deed in person before two adult people"
WORDS = TEXT.split(" ")


def write(folder: Path, arms: dict[str, tuple[int, float, int]], judged: bool = True) -> None:
    """Arms of so many answers, right so often, from so many different words."""
    store = TraceStore(10_000, 7, folder, "answers")
    draw = random.Random(0)
    for arm, (n, accuracy, words) in arms.items():
        for i in range(n):
            text = " ".join(draw.choices(WORDS[:words], k=20))
            record = {
                "id": f"{arm}{i}", "arm": arm, "text": text, "seconds": draw.uniform(1, 2), "outcome": "eos",
                "states": {"FUSE": int(draw.random() < 0.1)}, "tokens": [], "prompt": "secret",
            }  # fmt: skip
            store.add("", record)
            if judged:
                store.judge("", f"{arm}{i}", {"correct": float(draw.random() < accuracy)})


def test_arms_are_compared_with_intervals(tmp_path: Path) -> None:
    write(tmp_path, {"control": (400, 0.8, 18), "article": (400, 0.5, 6)})
    assert "secret" not in next(tmp_path.iterdir()).read_text()
    control, article = compare(read_arms(tmp_path))
    assert control["arm"] == "control" and control["too_small"] == []
    assert control["accuracy"].low < 0.8 < control["accuracy"].high
    minus = article["differences"]["accuracy"]
    assert minus.high < 0 and minus.low < -0.3 < minus.high
    assert article["distinct_2"].value < control["distinct_2"].value and article["differences"]["distinct_2"].high < 0
    assert article["self_bleu"].value > control["self_bleu"].value
    still = article["differences"]["seconds"]
    assert still.low < 0 < still.high
    assert compare(read_arms(tmp_path)) == compare(read_arms(tmp_path))


def test_a_small_sample_is_called_small(tmp_path: Path) -> None:
    write(tmp_path, {"control": (12, 0.8, 18), "article": (3, 0.5, 18)}, judged=False)
    control, article = compare(read_arms(tmp_path))
    assert {"accuracy", "seconds", "fuse_rate"} <= set(control["too_small"]) & set(article["too_small"])
    assert control["accuracy"].value is None and article["differences"]["accuracy"].value is None


def test_the_intervals_cover_what_they_claim(tmp_path: Path) -> None:
    covered = 0
    for i in range(40):
        folder = tmp_path / str(i)
        store, draw = TraceStore(1000, 7, folder, "none"), random.Random(i)
        for j in range(60):
            record: dict[str, Any] = {"id": f"{j}", "arm": "control", "seconds": draw.gauss(2, 0.5), "outcome": "eos"}
            store.add("", record | {"states": {}, "tokens": []})
        (row,) = compare(read_arms(folder), seed=i)
        covered += row["seconds"].low <= 2 <= row["seconds"].high
    assert covered >= 34  # of 40 at 95 %; fewer has a probability below 0.1 %


def test_the_measures_of_diversity() -> None:
    assert distinct([["a", "b"], ["a", "b"]], 1) == 0.5
    assert distinct([["a", "b", "c"]], 2) == 1.0 and distinct([["a"]], 2) == 0.0
    assert self_bleu(["a b c d e"] * 3) == pytest.approx([1.0] * 3)
    assert max(self_bleu(["a b c d e", "f g h i j"])) < 0.2 and self_bleu(["alone"]) == []


def test_a_folder_without_traces_and_a_damaged_line_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no traces"):
        read_arms(tmp_path)
    with pytest.raises(InputError, match="no folder"):
        read_arms(tmp_path / "nowhere")
    write(tmp_path, {"control": (3, 1.0, 5)})
    path = next(tmp_path.iterdir())
    path.write_text(path.read_text() + '{"kind": "tra')
    with pytest.warns(UserWarning, match="is damaged"):
        assert len(read_arms(tmp_path)["control"].seconds) == 3
    write(tmp_path, {"article": (2, 1.0, 5)})  # goes on behind the half line
    with pytest.warns(UserWarning, match="is damaged"):
        assert {name: len(arm.seconds) for name, arm in read_arms(tmp_path).items()} == {"control": 3, "article": 2}


def test_old_traces_are_deleted(tmp_path: Path) -> None:
    old = tmp_path / "2020-01-01.jsonl"
    old.write_text(json.dumps({"kind": "trace"}) + "\n")
    os.utime(old, (0, 0))
    TraceStore(10, 7, tmp_path, "answers")
    assert not old.exists()


def test_memory_holds_so_many_and_texts_are_kept_as_told() -> None:
    record = {"outcome": "eos", "text": "words", "prompt": "asked", "tokens": [{"id": 1, "text": "w", "state": "LOW"}]}
    store = TraceStore(3, 7, None, "all")
    for i in range(5):
        store.add("ann", {"id": str(i), **record})
    assert store.get("ann", "1") is None and store.get("bob", "4") is None
    kept = store.get("ann", "4")
    assert kept is not None and kept["prompt"] == "asked" and "owner" not in kept
    bare = TraceStore(3, 7, None, "none")
    bare.add("ann", {"id": "x", **record})
    assert {"text", "prompt"}.isdisjoint(bare.get("ann", "x") or {"text": 1})
    assert (bare.get("ann", "x") or {})["tokens"] == [{"state": "LOW"}]
