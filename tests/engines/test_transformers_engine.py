"""The embedded engine: the tokens of `generate`, as a stream."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch

from surefoot.control import Action, FuseRule, HighRule, LowRule, Probe, Profile, load_profile
from surefoot.engines.base import Request
from surefoot.engines.transformers import TransformersEngine
from surefoot.errors import InputError, NonFiniteLogitsError, ProfileError, ProfileWarning

OBSERVE = load_profile("observe")
COOL = Profile(name="cool", high=HighRule(threshold=-1e9, action=Action(temperature=0.2, hold=2)))


@pytest.fixture(scope="module")
def engine(smollm: Any) -> TransformersEngine:
    return TransformersEngine(*smollm)


@pytest.fixture
def small(byte_model: Any) -> TransformersEngine:
    return TransformersEngine(*byte_model)


def finish(generation: Any) -> Any:
    for _ in generation:
        pass
    return generation


def ids(generation: Any) -> list[int]:
    return [t.id for t in generation.trace.tokens]


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 1.0, "top_k": 20},
        {"temperature": 0.7},
        {"temperature": 0.0},
    ],
    ids=str,
)
def test_the_tokens_are_those_of_generate(engine: TransformersEngine, settings: dict[str, Any]) -> None:
    request = Request("Write a line about the sea.", OBSERVE, max_tokens=10, seed=3, **settings)
    generation = finish(engine.stream(request))
    prompt = engine.encode(request.prompt)
    wanted = {"do_sample": False}
    if settings["temperature"]:
        wanted = {"top_k": 0, "top_p": 1.0} | settings | {"do_sample": True}
    torch.manual_seed(3)
    out = engine.model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=10, **wanted)
    assert ids(generation) == out[0, prompt.shape[1] :].tolist()


def test_the_text_is_that_of_decoding_the_tokens(engine: TransformersEngine) -> None:
    generation = engine.stream(Request("Name a fruit.", OBSERVE, max_tokens=10, temperature=0))
    text = "".join(step.text for step in generation)
    assert text == generation.text == engine.tokenizer.decode(ids(generation), skip_special_tokens=True)
    assert text


def test_an_answer_ends_at_the_end_of_sequence(engine: TransformersEngine) -> None:
    generation = finish(engine.stream(Request("What is 1+1? One digit only.", OBSERVE, max_tokens=40, temperature=0)))
    assert generation.finish_reason == "eos"
    assert ids(generation)[-1] in engine.ends
    assert "<|im_end|>" not in generation.text


def test_a_stop_string_across_tokens_cuts_the_text(small: TransformersEngine) -> None:
    whole = finish(small.stream(Request("abc", OBSERVE, max_tokens=12, temperature=0)))
    stop = whole.text[2:5]
    assert len(stop) == 3
    cut = finish(small.stream(Request("abc", OBSERVE, max_tokens=12, temperature=0, stop=(stop,))))
    assert cut.finish_reason == "stop"
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert len(cut.trace.tokens) < len(whole.trace.tokens)


def test_what_was_held_back_for_a_stop_string_is_shown_at_the_end(engine: TransformersEngine) -> None:
    whole = finish(engine.stream(Request("Name a fruit.", OBSERVE, max_tokens=6, temperature=0)))
    stop = (whole.text[-1] + "\x00",)
    held = finish(engine.stream(Request("Name a fruit.", OBSERVE, max_tokens=6, temperature=0, stop=stop)))
    assert held.text == whole.text
    assert held.finish_reason == whole.finish_reason == "length"


def test_max_tokens_limits_the_answer(small: TransformersEngine) -> None:
    generation = finish(small.stream(Request("abc", OBSERVE, max_tokens=3, temperature=0)))
    assert generation.finish_reason == "length"
    assert len(generation.trace.tokens) == 3


def test_the_context_limits_the_answer(small: TransformersEngine) -> None:
    small.ends = set()
    prompt = "x" * 250
    generation = finish(small.stream(Request(prompt, OBSERVE, max_tokens=50, temperature=1.0, seed=0)))
    assert generation.finish_reason == "context"
    assert generation.prompt_tokens + len(generation.trace.tokens) == 256


def test_cancel_from_another_thread_ends_within_a_token(small: TransformersEngine) -> None:
    small.ends = set()
    generation = small.stream(Request("abc", OBSERVE, max_tokens=200, seed=0))
    for step in generation:
        if len(generation.trace.tokens) == 3:
            thread = threading.Thread(target=generation.cancel)
            thread.start()
            thread.join()
        assert step.token is None or len(generation.trace.tokens) <= 3
    assert generation.finish_reason == "cancelled"
    assert len(generation.trace.tokens) == 3


def test_closing_the_iterator_early_cancels(small: TransformersEngine) -> None:
    generation = small.stream(Request("abc", OBSERVE, max_tokens=50, seed=0))
    steps = iter(generation)
    next(steps)
    assert generation.finish_reason is None
    steps.close()
    assert generation.finish_reason == "cancelled"


@pytest.mark.parametrize("prompt", ["", " \n\t", [{"role": "user", "content": ""}], []])
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(InputError, match="empty"):
        Request(prompt, OBSERVE)


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": -0.1}, {"temperature": 5.1}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_p": 1.1},
        {"top_k": 0}, {"max_tokens": 0}, {"seed": -1}, {"seed": 2**63}, {"stop": ("",)},
    ],
    ids=str,
)  # fmt: skip
def test_a_setting_out_of_range_is_refused_by_name(setting: dict[str, Any]) -> None:
    name = next(iter(setting))
    with pytest.raises(InputError, match="stop string" if name == "stop" else name):
        Request("Hi", OBSERVE, **setting)


def test_a_prompt_longer_than_the_context_is_refused(small: TransformersEngine) -> None:
    with pytest.raises(InputError, match="256"):
        small.stream(Request("x" * 300, OBSERVE))


def test_messages_without_a_text_are_refused() -> None:
    with pytest.raises(InputError):
        Request([{"role": "user", "content": None}], OBSERVE)  # type: ignore[dict-item]


def test_a_profile_of_layers_the_model_lacks_is_refused(small: TransformersEngine) -> None:
    with pytest.raises(ProfileError, match="layer 99"):
        small.stream(Request("Hi", Profile(name="deep", probe=Probe(layers=(99,)))))


def test_a_profile_of_another_model_warns(small: TransformersEngine) -> None:
    with pytest.warns(ProfileWarning, match="calibrate"):
        small.stream(Request("Hi", Profile(name="foreign", model="other")))


def test_logits_that_are_not_finite_are_an_error(small: TransformersEngine) -> None:
    small.model.lm_head.weight.data[7] = float("nan")
    with pytest.raises(NonFiniteLogitsError, match="answer token 1"):
        finish(small.stream(Request("Hi", OBSERVE)))


def test_interleaved_streams_of_different_profiles_give_what_each_gives_alone(small: TransformersEngine) -> None:
    small.ends = set()
    low = Profile(name="low", low=LowRule(threshold=1e9, action=Action(temperature=2.0)))
    requests = [Request("abcdefgh", COOL, max_tokens=12, seed=1), Request("stuvwxyz!", low, max_tokens=12, seed=2)]
    alone = [ids(finish(small.stream(r))) for r in requests]
    together = [small.stream(r) for r in requests]
    for _ in zip(*together, strict=True):
        pass
    assert [ids(g) for g in together] == alone


def test_a_seed_makes_an_answer_reproducible_and_another_seed_another(small: TransformersEngine) -> None:
    small.ends = set()
    answers = [ids(finish(small.stream(Request("abc", OBSERVE, max_tokens=12, seed=s)))) for s in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]


def test_every_decided_override_is_applied(small: TransformersEngine) -> None:
    generation = finish(small.stream(Request("abcdefgh", COOL, max_tokens=12, seed=1, temperature=1.0)))
    assert generation.ledger().decided == generation.ledger().applied == len(generation.trace.tokens)


def test_the_fuse_ends_the_answer(small: TransformersEngine) -> None:
    small.ends = set()
    profile = Profile(name="fuse", fuse=FuseRule(window=4, std_below=100.0))
    generation = finish(small.stream(Request("abc", profile, max_tokens=20, seed=0)))
    assert generation.finish_reason == "fuse"
    assert len(generation.trace.tokens) == 4


def test_the_engine_and_attach_decide_the_same(byte_model: Any) -> None:
    import surefoot

    model, tokenizer = byte_model
    model.generation_config.eos_token_id = None
    engine = TransformersEngine(model, tokenizer)
    engine.ends = set()
    profile = Profile(name="mixed", high=HighRule(threshold=2.5, action=Action(temperature=0.3, top_p=0.8, hold=2)))
    generation = finish(engine.stream(Request("abcdefghij", profile, max_tokens=12, seed=4, temperature=1.2)))
    torch.manual_seed(4)
    prompt = engine.encode("abcdefghij")
    with surefoot.attach(model, profile) as footing:
        model.generate(prompt, max_new_tokens=12, do_sample=True, temperature=1.2, top_k=0)
    traced = footing.traces[0].tokens
    assert ids(generation) == [t.id for t in traced]
    assert [t.state for t in generation.trace.tokens] == [t.state for t in traced]
    assert {t.state for t in traced} == {"HIGH", "NEUTRAL"}


def test_log_probabilities_are_those_of_the_model_at_temperature_1(engine: TransformersEngine) -> None:
    request = Request("Name a fruit.", OBSERVE, max_tokens=5, temperature=0.5, seed=1, top_logprobs=3)
    generation = engine.stream(request)
    steps = [step for step in generation if step.token is not None]
    prompt = engine.encode(request.prompt)
    answer = torch.tensor([[step.token.id for step in steps if step.token]])
    with torch.inference_mode():
        logits = engine.model(torch.cat([prompt, answer], 1)).logits[0, prompt.shape[1] - 1 : -1]
    expected = logits.log_softmax(-1)
    for step, row in zip(steps, expected, strict=True):
        assert step.token is not None and step.logprob == pytest.approx(float(row[step.token.id]), abs=1e-3)
        values, indices = row.topk(3)
        assert [t for t, _ in step.top_logprobs] == indices.tolist()
        assert [p for _, p in step.top_logprobs] == pytest.approx(values.tolist(), abs=1e-3)


def test_without_a_profile_nothing_is_measured_and_the_tokens_are_the_same(engine: TransformersEngine) -> None:
    base = {"max_tokens": 8, "temperature": 0.9, "seed": 4}
    off = finish(engine.stream(Request("Name a fruit.", None, **base)))
    assert ids(off) == ids(finish(engine.stream(Request("Name a fruit.", OBSERVE, **base))))
    assert {(t.kurtosis, t.entropy, t.state, t.reason) for t in off.trace.tokens} == {(None, None, "NEUTRAL", "")}
    held, used = off.room()
    assert held > used > 0


def test_a_fuse_that_may_not_stop_is_reported(small: TransformersEngine) -> None:
    small.ends = set()
    fuse = Profile(name="fuse", fuse=FuseRule(window=5, std_below=100.0))
    base = {"max_tokens": 9, "temperature": 1.0, "seed": 0}
    stopped = finish(small.stream(Request("x" * 20, fuse, **base)))
    assert stopped.finish_reason == "fuse" and len(stopped.trace.tokens) == 5
    went_on = finish(small.stream(Request("x" * 20, fuse, fuse=False, **base)))
    assert went_on.finish_reason == "length" and went_on.trace.tokens[4].state == "FUSE"


def test_an_answer_that_has_ended_holds_no_keys_and_values(small: TransformersEngine) -> None:
    small.ends = set()
    generation = small.stream(Request("x" * 20, OBSERVE, max_tokens=6, temperature=1.0, seed=0))
    steps = iter(generation)
    next(steps)
    layer = weakref.ref(generation._cache.layers[0])
    gc.disable()  # freed at once, not when cycles are collected
    try:
        for _ in steps:
            pass
        assert layer() is None
    finally:
        gc.enable()
    held, used = generation.room()
    assert held > used > 0 and generation.ledger().decided == 0
