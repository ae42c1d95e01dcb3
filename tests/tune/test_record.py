"""Recording a baseline with a model, and `surefoot calibrate` from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import surefoot
from surefoot.cli import app
from surefoot.control import load_profile
from surefoot.errors import InputError
from surefoot.tune.baseline import record_baseline
from surefoot.tune.data import Corpus

SENTENCES = ["The cat sat on mat number", "A river runs through town", "Please count the boxes in", "Sort this list of"]


def corpus(items: list[str], running_text: bool = False) -> Corpus:
    return Corpus("c", "0" * 64, items, items, running_text)


@pytest.fixture
def folder(byte_model: Any, tmp_path: Path) -> Path:
    """A tiny model as `save_pretrained` writes it."""
    model, tokenizer = byte_model
    model.save_pretrained(tmp_path / "tiny")
    tokenizer.save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def calibrate(*arguments: Any) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["calibrate", "--json", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.stdout)


def test_answers_are_recorded_token_by_token(byte_model: Any) -> None:
    baseline = record_baseline(*byte_model, corpus([f"{s} {i}" for i, s in enumerate(SENTENCES)]), batch=2)
    tokens, statistics, layers, heads = baseline.features.shape
    assert (statistics, layers, heads) == (1, 3, 4)
    assert tokens == len(baseline.entropy) == len(baseline.sequence)
    assert sorted(set(baseline.sequence.tolist())) == [0, 1, 2, 3]
    np.testing.assert_allclose(np.exp(baseline.features).mean((1, 2, 3)), baseline.kurtosis, rtol=1e-4)


def test_a_batch_changes_nothing_but_the_sampling_noise(byte_model: Any) -> None:
    items = ["a prompt of some length", "short one"]
    first = [record_baseline(*byte_model, corpus(items), batch=b) for b in (1, 2)]
    for baseline in first:
        assert np.isfinite(baseline.features).all()
    starts = [np.flatnonzero(b.sequence == 1)[0] for b in first]
    np.testing.assert_allclose(first[0].features[starts[0]], first[1].features[starts[1]], atol=1e-3)


def test_a_seed_makes_a_baseline_reproducible_and_leaves_the_generator_alone(byte_model: Any) -> None:
    torch.manual_seed(9)
    wanted = torch.rand(3)
    torch.manual_seed(9)
    one, two = (record_baseline(*byte_model, corpus(SENTENCES), seed=4) for _ in range(2))
    assert torch.equal(torch.rand(3), wanted)
    assert np.array_equal(one.features, two.features)


def test_running_text_is_read_at_every_position_with_enough_keys(byte_model: Any) -> None:
    baseline = record_baseline(*byte_model, corpus(["x" * 30, "tiny", "y" * 20], running_text=True))
    assert np.bincount(baseline.sequence).tolist() == [30 - 7, 20 - 7]
    assert baseline.group.tolist() == [0] * 23 + [2] * 13


def test_reading_gives_the_entropies_of_the_model(byte_model: Any) -> None:
    model, tokenizer = byte_model
    text = "read this sentence, please"
    baseline = record_baseline(model, tokenizer, corpus([text], running_text=True))
    with torch.inference_mode():
        log_p = model(**tokenizer(text, return_tensors="pt")).logits[0].log_softmax(-1)
    np.testing.assert_allclose(baseline.entropy, -(log_p.exp() * log_p).sum(-1)[7:].numpy(), rtol=1e-4)


def test_a_corpus_of_nothing_but_short_text_is_refused(byte_model: Any) -> None:
    with pytest.raises(InputError, match="too short"):
        record_baseline(*byte_model, corpus(["a", "bc"], running_text=True))


def test_reading_a_passage_longer_than_the_models_context_works(make_model: Any, byte_tokenizer: Any) -> None:
    model = make_model("gpt2", vocab_size=len(byte_tokenizer), n_positions=64, max_position_embeddings=64)
    baseline = record_baseline(model, byte_tokenizer, corpus(["z" * 100], running_text=True))
    assert 0 < len(baseline.entropy) <= 64


def test_calibrate_writes_a_profile_that_attach_can_use(folder: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "mine.json"
    prompts.write_text("".join(json.dumps({"prompt": f"{SENTENCES[i % 4]} {i}"}) + "\n" for i in range(18)))
    figures = calibrate("--model", folder, "--data", prompts, "--kind", "creative", "--out", out)
    profile = load_profile(out)
    assert (profile.name, profile.model) == ("mine", "tiny (llama 3x4x32)")
    assert figures["tokens"] == profile.provenance.tokens >= 500
    assert tuple(figures["layers"]) == profile.probe.layers
    from surefoot.models import load_model

    model, tokenizer = load_model(str(folder))
    inputs = tokenizer(SENTENCES[0], return_tensors="pt")
    with surefoot.attach(model, profile) as footing:
        model.generate(**inputs, max_new_tokens=40, do_sample=True, eos_token_id=None)
    states = {t.state for t in footing.traces[0].tokens}
    assert len(states) > 1, "thresholds are quantiles: some tokens must lie beyond them"
    assert footing.ledger.applied == footing.ledger.decided > 0


def test_calibrate_is_reproducible(folder: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "p.txt"
    prompts.write_text("\n".join(f"{SENTENCES[i % 4]} {i}" for i in range(18)))
    written = []
    for name in ("one.json", "two.json"):
        calibrate("--model", folder, "--data", prompts, "--prompts", "--name", "same", "--out", tmp_path / name)
        written.append((tmp_path / name).read_text())
    assert written[0] == written[1]


def test_calibrate_reads_running_text(folder: Path, tmp_path: Path) -> None:
    text, out = tmp_path / "t.txt", tmp_path / "read.json"
    text.write_text("\n\n".join(f"{SENTENCES[i % 4]} {i}. " * 4 for i in range(8)))
    figures = calibrate("--model", folder, "--data", text, "--out", out)
    assert figures["tokens"] >= 500
    assert load_profile(out).low.threshold == figures["low"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--statistics", "kurtosis,wisdom"), "unknown or repeated"),
        (("--statistics", "kurtosis,kurtosis"), "unknown or repeated"),
        (("--out", "/nowhere/p.json"), "folder of --out"),
        (("--data", "/nowhere/p.jsonl"), "cannot read"),
        (("--limit", "2"), "too few"),
        (("--batch", "0"), "batch"),
    ],
)
def test_calibrate_refuses_what_it_cannot_use(folder: Path, tmp_path: Path, arguments: Any, problem: str) -> None:
    command = ["calibrate", "--json", "--model", str(folder), "--out", str(tmp_path / "p.json"), *arguments]
    result = CliRunner().invoke(app, command)
    if result.exit_code == 2:  # the option's own range check
        assert problem in result.output
    else:
        assert isinstance(result.exception, InputError), result.exception
        assert problem in str(result.exception)
