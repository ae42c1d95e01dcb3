"""`attach`: what it does to sampling, and the traces it leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

import surefoot
from surefoot.control import (
    Action,
    ConsistencyRule,
    FuseRule,
    HighRule,
    LowRule,
    Profile,
    ShockRule,
)

PROMPT = torch.arange(3, 15).unsqueeze(0)
ALWAYS = -1e9


def prompts(rows: int = 3) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 97, (rows, 12), generator=torch.Generator().manual_seed(7))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def always_high(**action: Any) -> Profile:
    return Profile(name="always", high=HighRule(threshold=ALWAYS, action=Action(**action)))


def fuse(window: int = 4) -> Profile:
    return Profile(name="fuse", fuse=FuseRule(window=window, std_below=100.0))


class Only(LogitsProcessor):
    """Leaves one row a single token."""

    def __init__(self, row: int, token: int) -> None:
        self.row, self.token = row, token

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        kept = scores[self.row, self.token].clone()
        scores[self.row] = -torch.inf
        scores[self.row, self.token] = kept
        return scores


# ── what it does ──


def test_high_with_a_tiny_temperature_follows_the_greedy_tokens(tiny: Any) -> None:
    model = tiny()
    greedy = model.generate(**prompts(), max_new_tokens=8, do_sample=False)
    torch.manual_seed(0)
    with surefoot.attach(model, always_high(temperature=1e-4)) as footing:
        steadied = model.generate(**prompts(), max_new_tokens=8, do_sample=True, temperature=1.5, top_k=0)
    assert torch.equal(steadied, greedy)
    assert {t.state for trace in footing.traces for t in trace.tokens} == {"HIGH"}


@pytest.mark.parametrize("request_top_p", [None, 0.95])
def test_high_with_a_tiny_top_p_follows_the_greedy_tokens(tiny: Any, request_top_p: float | None) -> None:
    model = tiny()
    greedy = model.generate(**prompts(), max_new_tokens=8, do_sample=False)
    with surefoot.attach(model, always_high(top_p=0.001)):
        steadied = model.generate(**prompts(), max_new_tokens=8, do_sample=True, top_k=0, top_p=request_top_p)
    assert torch.equal(steadied, greedy)


def test_top_p_1_switches_the_requests_top_p_off(tiny: Any) -> None:
    model = tiny()
    settings = {"max_new_tokens": 8, "do_sample": True, "top_k": 0, "temperature": 1.5, "suppress_tokens": [0, 1]}
    torch.manual_seed(1)
    unlimited = model.generate(**prompts(), **settings)
    torch.manual_seed(1)
    limited = model.generate(**prompts(), **settings, top_p=0.3)
    torch.manual_seed(1)
    with surefoot.attach(model, always_high(top_p=1.0)):
        steadied = model.generate(**prompts(), **settings, top_p=0.3)
    assert torch.equal(steadied, unlimited)
    assert not torch.equal(limited, unlimited)


def test_an_override_samples_as_a_request_for_that_temperature(tiny: Any) -> None:
    model = tiny()
    torch.manual_seed(2)
    wanted = model.generate(**prompts(), max_new_tokens=8, do_sample=True, temperature=0.5, top_k=0)
    torch.manual_seed(2)
    with surefoot.attach(model, always_high(temperature=0.5)):
        steadied = model.generate(**prompts(), max_new_tokens=8, do_sample=True, temperature=1.7, top_k=0)
    assert torch.equal(steadied, wanted)


def test_a_greedy_request_stays_greedy(tiny: Any) -> None:
    model = tiny()
    greedy = model.generate(**prompts(), max_new_tokens=6, do_sample=False)
    with surefoot.attach(model, always_high(temperature=5.0)) as footing:
        assert torch.equal(model.generate(**prompts(), max_new_tokens=6, do_sample=False), greedy)
    assert {t.temperature for t in footing.traces[0].tokens} == {0.0}


def test_every_decided_override_is_applied(tiny: Any) -> None:
    model = tiny()
    profile = Profile(
        name="mixed",
        low=LowRule(threshold=2.4, action=Action(temperature=0.2)),
        high=HighRule(threshold=2.6, action=Action(temperature=0.3, top_p=0.5, hold=2)),
        shock=ShockRule(threshold=0.5, action=Action(temperature=0.4)),
    )
    with surefoot.attach(model, profile) as footing:
        model.generate(**prompts(), max_new_tokens=12, do_sample=True, top_k=0, eos_token_id=None)
    assert footing.ledger is not None
    assert footing.ledger.decided == sum(t.sequence > 0 for trace in footing.traces for t in trace.tokens) > 0
    assert footing.ledger.applied == footing.ledger.decided


def test_disagreeing_blocks_draw_the_second_token(tiny: Any) -> None:
    model = tiny()
    with surefoot.attach(model, Profile(name="blocks", consistency=ConsistencyRule(threshold=1.0))) as footing:
        torch.manual_seed(4)
        steadied = model.generate(PROMPT, max_new_tokens=1, do_sample=True, top_k=0, temperature=2.0)
    torch.manual_seed(4)
    p = (model(input_ids=PROMPT).logits[:, -1] / 2.0).softmax(-1)
    first, second = (int(torch.multinomial(p, 1)) for _ in range(2))
    assert first != second
    assert int(steadied[0, -1]) == second
    assert footing.traces[0].tokens[0].resampled


def test_the_fuse_ends_the_answer_after_its_window(tiny: Any) -> None:
    model = tiny()
    with surefoot.attach(model, fuse(4)) as footing:
        out = model.generate(PROMPT, max_new_tokens=20, do_sample=True, min_new_tokens=20)
    assert out.shape[1] - PROMPT.shape[1] == 4
    assert [t.state for t in footing.traces[0].tokens] == ["NEUTRAL"] * 3 + ["FUSE"]


def test_the_fuse_ends_each_row_by_itself(tiny: Any) -> None:
    model = tiny()
    forced = LogitsProcessorList([Only(1, 50)])  # forced tokens do not count for the fuse
    with surefoot.attach(model, fuse(4)) as footing:
        out = model.generate(**prompts(2), max_new_tokens=9, min_new_tokens=9, do_sample=True, logits_processor=forced)
    assert [len(trace.tokens) for trace in footing.traces] == [4, 9]
    assert out[0, 16:].tolist() == [0] * 5
    assert out[1, 12:].tolist() == [50] * 9


def test_the_fuse_only_reports_when_it_does_not_act(tiny: Any) -> None:
    model = tiny()
    with surefoot.attach(model, fuse(4), acting=False) as footing:
        out = model.generate(PROMPT, max_new_tokens=8, min_new_tokens=8, do_sample=True)
    assert out.shape[1] - PROMPT.shape[1] == 8
    assert [t.state for t in footing.traces[0].tokens].count("FUSE") == 5


# ── traces ──


def test_there_is_one_trace_a_row_with_the_rows_tokens(tiny: Any) -> None:
    model = tiny()
    torch.manual_seed(0)
    with surefoot.attach(model, "observe") as footing:
        out = model.generate(**prompts(4), max_new_tokens=40, do_sample=True, top_k=0)
    ended = 0
    for trace, row in zip(footing.traces, out[:, 12:].tolist(), strict=True):
        wanted = row[: row.index(1) + 1] if 1 in row else row
        ended += 1 in row
        assert [t.id for t in trace.tokens] == wanted
    assert ended, "the seed should end a row early"


def test_returned_sequences_have_a_trace_each(tiny: Any) -> None:
    model = tiny()
    with surefoot.attach(model, "observe") as footing:
        out = model.generate(PROMPT, max_new_tokens=4, do_sample=True, num_return_sequences=3, eos_token_id=None)
    assert [[t.id for t in trace.tokens] for trace in footing.traces] == out[:, 12:].tolist()


def test_a_trace_ends_where_a_stop_string_ended_its_row(byte_model: Any) -> None:
    model, tokenizer = byte_model
    inputs = tokenizer(["abcdefghijkl", "mnopqrstuvwx"], return_tensors="pt")
    letters = {i for i in range(len(tokenizer)) if tokenizer.decode([i]).isalpha() and tokenizer.decode([i]).isascii()}
    others = [i for i in range(len(tokenizer)) if i not in letters]
    settings = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "suppress_tokens": others}
    first = tokenizer.decode(model.generate(**inputs, **settings)[0, 12:15])
    settings |= {"stop_strings": [first], "tokenizer": tokenizer, "eos_token_id": 1}
    with surefoot.attach(model, "observe") as footing:
        out = model.generate(**inputs, **settings)
    assert out[0, 15:].tolist() == [0] * 5, "the row has ended and is padded"
    assert len(footing.traces[0].tokens) == 3


def test_texts_are_filled_in_by_a_tokenizer(smollm: Any) -> None:
    model, tokenizer = smollm
    inputs = tokenizer("The capital of France is", return_tensors="pt")
    with surefoot.attach(model, "observe", tokenizer=tokenizer) as footing:
        out = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    assert "".join(t.text for t in footing.traces[0].tokens) == tokenizer.decode(out[0, inputs["input_ids"].shape[1] :])


def test_the_traces_are_those_of_the_last_call(tiny: Any) -> None:
    model = tiny()
    with surefoot.attach(model, "observe") as footing:
        model.generate(**prompts(3), max_new_tokens=3)
        model.generate(PROMPT, max_new_tokens=2, eos_token_id=None)
    assert [len(trace.tokens) for trace in footing.traces] == [2]
