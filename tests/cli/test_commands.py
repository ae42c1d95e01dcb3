"""The command line: output, exit codes, interruption."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import surefoot.models
from surefoot import cli
from surefoot.control import builtin_profiles, load_profile
from surefoot.control.trace import TokenTrace
from surefoot.errors import ModelError

TOKEN_KEYS = {"id", "text", "kurtosis", "std", "entropy", "determinacy", "state", "temperature", "top_p", "reason"}
QUESTION = "Name three colours."


@pytest.fixture
def surefoot_cli(smollm: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command as `main` does; the default model is loaded once."""
    load = surefoot.models.load_model
    loaded = {"smollm2": smollm}
    monkeypatch.setattr(surefoot.models, "load_model", lambda name, *more: loaded.get(name) or load(name, *more))
    monkeypatch.setattr("warnings.showwarning", None)  # `main` replaces it; undone at the end

    def call(*arguments: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["surefoot", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def answer(call: Any, *arguments: Any) -> dict[str, Any]:
    code, out, _ = call("run", QUESTION, "--json", "--max-tokens", 8, *arguments)
    assert code == 0
    return json.loads(out)


def test_run_json_has_text_tokens_and_summary(surefoot_cli: Any) -> None:
    result = answer(surefoot_cli)
    assert set(result) == {"text", "tokens", "summary"}
    assert len(result["tokens"]) == result["summary"]["tokens"] == 8
    for token in result["tokens"]:
        assert set(token) == set(TokenTrace.__dataclass_fields__) >= TOKEN_KEYS
    assert "".join(t["text"] for t in result["tokens"]) == result["text"]


def test_run_summarises_what_happened(surefoot_cli: Any) -> None:
    summary = answer(surefoot_cli, "--temperature", 1.5, "--seed", 1)["summary"]
    assert summary["profile"] == "careful"
    assert summary["model"] == "SmolLM2-135M-Instruct (llama 30x9x576)"
    assert summary["finish_reason"] == "length"
    assert summary["decided"] == summary["applied"] == summary["overrides"]
    assert summary["drop_rate"] == 0
    assert sum(summary["states"].values()) == 8


def test_run_with_a_seed_is_reproducible(surefoot_cli: Any) -> None:
    texts = [answer(surefoot_cli, "--temperature", 2, "--profile", "observe", "--seed", s)["text"] for s in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_run_prints_text_and_summary(surefoot_cli: Any) -> None:
    text = answer(surefoot_cli, "--temperature", 0)["text"]
    code, out, _ = surefoot_cli("run", QUESTION, "--max-tokens", 8, "--temperature", 0, "--tokens")
    assert code == 0
    assert out.startswith(text)
    assert "overrides:" in out and "ended by: length" in out


def test_measure_only_overrides_nothing(surefoot_cli: Any) -> None:
    result = answer(surefoot_cli, "--measure-only", "--profile", "article", "--temperature", 1.5)
    assert result["summary"]["decided"] == 0
    assert {t["temperature"] for t in result["tokens"]} == {1.5}


def test_a_stop_string_ends_the_answer(surefoot_cli: Any) -> None:
    text = answer(surefoot_cli, "--temperature", 0)["text"]
    stop = text[6:9]
    result = answer(surefoot_cli, "--temperature", 0, "--stop", stop)
    assert result["text"] == text[: text.index(stop)]
    assert result["summary"]["finish_reason"] == "stop"


def test_a_prompt_can_come_from_standard_input(surefoot_cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = answer(surefoot_cli, "--temperature", 0)["text"]
    monkeypatch.setattr(sys, "stdin", io.StringIO(QUESTION))
    _, out, _ = surefoot_cli("run", "-", "--json", "--max-tokens", 8, "--temperature", 0)
    assert json.loads(out)["text"] == wanted


def test_trace_writes_parquet(surefoot_cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    result = answer(surefoot_cli, "--trace", path)
    table = pq.read_table(path)
    assert table["id"].to_pylist() == [t["id"] for t in result["tokens"]]
    assert set(table.column_names) == set(TokenTrace.__dataclass_fields__)
    assert json.loads(table.schema.metadata[b"surefoot.profile"])["name"] == "careful"


def malformed(folder: Path, content: str) -> Path:
    path = folder / "bad.json"
    path.write_text(content)
    return path


def test_an_unknown_model_exits_4(surefoot_cli: Any) -> None:
    code, out, err = surefoot_cli("run", "Hi", "--model", "nope")
    assert (code, out) == (4, "")
    assert "nope" in err and "Known: smollm2" in err


def test_a_folder_without_a_model_exits_4(surefoot_cli: Any, tmp_path: Path) -> None:
    code, _, err = surefoot_cli("run", "Hi", "--model", tmp_path)
    assert code == 4
    assert "cannot load" in err


def test_an_unknown_profile_exits_3(surefoot_cli: Any) -> None:
    code, _, err = surefoot_cli("run", "Hi", "--profile", "nope")
    assert code == 3
    assert "careful" in err


def test_a_profile_that_is_not_json_exits_3(surefoot_cli: Any, tmp_path: Path) -> None:
    code, _, err = surefoot_cli("run", "Hi", "--profile", malformed(tmp_path, "{oops"))
    assert code == 3
    assert "not valid JSON" in err


def test_a_profile_with_a_bad_field_exits_3_and_names_it(surefoot_cli: Any, tmp_path: Path) -> None:
    code, _, err = surefoot_cli("run", "Hi", "--profile", malformed(tmp_path, '{"name": "x", "fuse": {"window": 1}}'))
    assert code == 3
    assert "fuse.window" in err


def test_a_profile_of_layers_the_model_lacks_exits_3(surefoot_cli: Any, tmp_path: Path) -> None:
    path = malformed(tmp_path, '{"name": "deep", "probe": {"layers": [99]}}')
    code, _, err = surefoot_cli("run", "Hi", "--profile", path)
    assert code == 3
    assert "layer 99" in err


def test_a_profile_of_another_model_is_warned_about_on_standard_error(surefoot_cli: Any, tmp_path: Path) -> None:
    import warnings

    path = malformed(tmp_path, '{"name": "foreign", "model": "other"}')
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, out, err = surefoot_cli("run", "Hi", "--profile", path, "--max-tokens", 1, "--json")
    assert code == 0
    assert "warning: profile 'foreign'" in err
    json.loads(out)


@pytest.mark.parametrize(
    "arguments",
    [("",), ("  ",), ("Hi", "--max-tokens", 0), ("Hi", "--temperature", 9), ("Hi", "--trace", "/nowhere/t.pq")],
)
def test_input_that_cannot_be_used_exits_5(surefoot_cli: Any, arguments: tuple[Any, ...]) -> None:
    code, _, err = surefoot_cli("run", *arguments)
    assert code == 5
    assert err.startswith("error: ")
    assert "Traceback" not in err


def test_a_prompt_that_is_not_utf8_exits_5(surefoot_cli: Any) -> None:
    code, _, err = surefoot_cli("run", "caf\udce9")  # how Python passes on bytes that are not UTF-8
    assert code == 5
    assert err.startswith("error: ")


def test_wrong_usage_exits_2(surefoot_cli: Any) -> None:
    assert surefoot_cli("run", "Hi", "--no-such-option")[0] == 2


COMMANDS = [
    [], ["run"], ["calibrate"], ["models"], ["models", "list"], ["models", "get"], ["profiles"], ["profiles", "list"],
    ["profiles", "show"],
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c) or "surefoot")
def test_help_works_for_every_command(surefoot_cli: Any, command: list[str]) -> None:
    code, out, _ = surefoot_cli(*command, "--help")
    assert code == 0
    plain = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", out).split())
    # In front of it stands how this process was started.
    assert re.search(rf"Usage: .*surefoot {' '.join(command)}".rstrip(), plain)


def test_version(surefoot_cli: Any) -> None:
    assert surefoot_cli("--version") == (0, f"surefoot {surefoot.__version__}\n", "")


def test_profiles_list_names_the_built_in_ones(surefoot_cli: Any) -> None:
    _, out, _ = surefoot_cli("profiles", "list", "--json")
    rows = json.loads(out)["profiles"]
    assert [r["name"] for r in rows] == list(builtin_profiles())
    assert all(set(r) == {"name", "version", "model", "description"} for r in rows)


def test_profiles_show_prints_a_profile_that_loads(surefoot_cli: Any, tmp_path: Path) -> None:
    _, out, _ = surefoot_cli("profiles", "show", "careful")
    assert load_profile(malformed(tmp_path, out)) == load_profile("careful")


def test_profiles_show_of_an_unknown_one_exits_3(surefoot_cli: Any) -> None:
    assert surefoot_cli("profiles", "show", "nope")[0] == 3


def test_models_list_says_what_is_ready(surefoot_cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert json.loads(surefoot_cli("models", "list", "--json")[1])["models"][0]["ready"] is True  # `smollm` made it so
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path))
    listed = json.loads(surefoot_cli("models", "list", "--json")[1])
    assert listed["cache"] == str(tmp_path)
    assert listed["models"][0]["ready"] is False
    assert listed["models"][0]["name"] == "smollm2"


def test_models_get_of_an_unknown_name_exits_4(surefoot_cli: Any) -> None:
    assert surefoot_cli("models", "get", "nope")[0] == 4


@pytest.fixture
def fake_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache that is empty, and a package whose file is not the model."""
    source = tmp_path / "source.gguf"
    source.write_bytes(b"something else")
    monkeypatch.setattr(surefoot.models, "_source", lambda *_: source)
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_models_get_verifies_the_checksum(fake_package: Path) -> None:
    with pytest.raises(ModelError, match="SHA-256"):
        surefoot.models.get_model()
    assert list(fake_package.iterdir()) == [], "nothing half done may stay"


def test_models_get_of_a_wrong_checksum_exits_4(fake_package: Path, surefoot_cli: Any) -> None:
    code, _, err = surefoot_cli("models", "get")
    assert code == 4
    assert "reinstall" in err


def test_an_interrupted_conversion_leaves_nothing(fake_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    known = surefoot.models.MODELS["smollm2"]
    right = hashlib.sha256(b"something else").hexdigest()
    monkeypatch.setitem(surefoot.models.MODELS, "smollm2", replace(known, sha256=right))

    def convert(source: Path, folder: Path) -> None:
        folder.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(surefoot.models, "_convert", convert)
    with pytest.raises(KeyboardInterrupt):
        surefoot.models.get_model()
    assert list(fake_package.iterdir()) == []
    assert not surefoot.models.is_ready(surefoot.models.MODELS["smollm2"])


# ── as a process ──


def start(*arguments: str) -> subprocess.Popen[bytes]:
    # A shell that runs the tests in the background has SIGINT ignored, and children inherit that.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{heard}; from surefoot.cli import main; main()", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def test_ctrl_c_exits_130_with_the_summary(smollm: Any) -> None:
    process = start("run", "Write a very long story about a ship.", "--max-tokens", "1000", "--seed", "1")
    try:
        assert process.stdout is not None
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    text = (first + out).decode()
    assert process.returncode == 130, err.decode()
    assert "ended by: cancelled" in text
    assert "overrides:" in text
    assert "Traceback" not in err.decode()
