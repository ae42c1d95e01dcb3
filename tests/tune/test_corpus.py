"""Reading a corpus: every format, and every way it can be malformed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from surefoot.errors import InputError
from surefoot.tune import data
from surefoot.tune.data import load_corpus, question_prompt


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def test_jsonl_prompts(tmp_path: Path) -> None:
    path = write(tmp_path, "p.jsonl", lines({"prompt": "one"}, {"prompt": "two", "group": 7}) + "\n")
    corpus = load_corpus(path)
    assert (corpus.name, corpus.items, corpus.groups) == ("p.jsonl", ["one", "two"], ["one", "7"])
    assert not corpus.running_text
    assert corpus.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_jsonl_questions_are_grouped_by_their_context(tmp_path: Path) -> None:
    rows = [{"question": "a?", "context": "C"}, {"question": "b?", "context": "C"}, {"question": "c?"}]
    corpus = load_corpus(write(tmp_path, "q.jsonl", lines(*rows)))
    assert corpus.items == [question_prompt("a?", "C"), question_prompt("b?", "C"), "c?"]
    assert corpus.groups == ["C", "C", "c?"]


def test_squad(tmp_path: Path) -> None:
    paragraph = {"context": "C", "qas": [{"question": "a?"}, {"question": "b?"}]}
    corpus = load_corpus(write(tmp_path, "s.json", json.dumps({"data": [{"paragraphs": [paragraph]}]})))
    assert corpus.items == [question_prompt("a?", "C"), question_prompt("b?", "C")]
    assert corpus.groups == ["C", "C"]


def test_text_is_read_by_paragraph(tmp_path: Path) -> None:
    corpus = load_corpus(write(tmp_path, "t.txt", "one\nline two\n\n\n\nthree\n"))
    assert corpus.items == ["one\nline two", "three"]
    assert corpus.running_text


def test_text_with_windows_line_ends_is_read_by_paragraph(tmp_path: Path) -> None:
    corpus = load_corpus(write(tmp_path, "t.txt", "one\r\nline two\r\n\r\nthree\r\n"))
    assert len(corpus.items) == 2


def test_one_prompt_a_line(tmp_path: Path) -> None:
    corpus = load_corpus(write(tmp_path, "p.txt", "one\n\n  two \n"), one_prompt_per_line=True)
    assert corpus.items == ["one", "two"]
    assert not corpus.running_text


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    assert load_corpus(write(tmp_path, "p.txt", b"\xef\xbb\xbfone")).items == ["one"]


def test_the_built_in_prompts_load() -> None:
    corpus = load_corpus(None)
    assert len(corpus.items) == 240
    assert len(set(corpus.items)) == 240


def test_limit_spreads_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "p.txt", "\n".join(map(str, range(10))))
    assert load_corpus(path, one_prompt_per_line=True, limit=3).items == ["0", "3", "6"]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_leaves_nothing_is_refused(tmp_path: Path, limit: int) -> None:
    path = write(tmp_path, "p.txt", "one\ntwo\n")
    with pytest.raises(InputError):
        load_corpus(path, one_prompt_per_line=True, limit=limit)


@pytest.mark.parametrize("separator", ["\u2028", "\x85"])
def test_a_unicode_line_separator_inside_a_string_ends_no_line(tmp_path: Path, separator: str) -> None:
    prompt = f"one{separator}line"
    assert load_corpus(write(tmp_path, "p.jsonl", lines({"prompt": prompt}))).items == [prompt]


@pytest.mark.parametrize(
    "bad", ["{oops", '{"prompt": 5}', '{"prompt": "  "}', "[1]", "7", '{"text": "x"}', "null", '{"question": 3}']
)
def test_the_line_of_a_malformed_row_is_named(tmp_path: Path, bad: str) -> None:
    path = write(tmp_path, "p.jsonl", lines({"prompt": "fine"}) + "\n" + bad + "\n")
    with pytest.raises(InputError, match="line 3"):
        load_corpus(path)


@pytest.mark.parametrize(
    "bad", ["[]", "{}", '{"data": [{}]}', '{"data": 3}', '{"data": [{"paragraphs": [{"qas": [{}]}]}]}', "x"]
)
def test_what_is_not_squad_is_refused(tmp_path: Path, bad: str) -> None:
    with pytest.raises(InputError, match=r"s\.json"):
        load_corpus(write(tmp_path, "s.json", bad))


@pytest.mark.parametrize(
    ("name", "content"), [("a.txt", ""), ("a.jsonl", "\n\n"), ("a.json", '{"data": []}'), ("b.txt", " \n\n ")]
)
def test_an_empty_corpus_is_refused(tmp_path: Path, name: str, content: str) -> None:
    with pytest.raises(InputError, match="holds no prompt"):
        load_corpus(write(tmp_path, name, content))


def test_a_file_that_is_not_utf8_is_refused_with_the_place(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="byte 2"):
        load_corpus(write(tmp_path, "l.txt", b"ab\xe9"))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_corpus(tmp_path / "none.txt")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        load_corpus(tmp_path)


def test_a_huge_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "MAX_BYTES", 3)
    with pytest.raises(InputError, match="larger"):
        load_corpus(write(tmp_path, "p.txt", "four"))
