"""What the probe measures equals a slow float64 reference, whatever the cache, the mask and the padding."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import surefoot
from surefoot.control import Profile, Recipe
from surefoot.control.profile import Probe as ProbeSettings
from surefoot.engines.probe import Probe
from surefoot.signals import STATISTICS, Signals
from surefoot.tune.data import load_corpus

STEPS = 4
FOUR_CACHES: dict[str, Any] = {
    "default": {},
    "dynamic": {"cache": DynamicCache},
    "static": {"cache_implementation": "static"},
    "none": {"use_cache": False},
}


def profile(**probe: Any) -> Profile:
    recipe = Recipe(kind="mean_kurtosis", statistics=STATISTICS)
    return Profile(name="all", probe=ProbeSettings(**({"max_keys": None} | probe)), recipe=recipe)


class Recorder(LogitsProcessor):
    def __init__(self, probe: Probe) -> None:
        self.probe, self.steps = probe, []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.steps.append(self.probe.signals(scores))
        return scores


def measure(model: Any, ids: torch.Tensor, mask: torch.Tensor | None = None, **settings: Any) -> tuple[Any, Any]:
    """Signals of each step of a greedy answer, and its sequences."""
    probe = Probe(model, profile())
    recorder = Recorder(probe)
    made = {k: v() if callable(v) else v for k, v in settings.items()}
    with probe.watching():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids) if mask is None else mask, do_sample=False, eos_token_id=None,
            logits_processor=LogitsProcessorList([recorder]), **({"max_new_tokens": STEPS} | made),
        )  # fmt: skip
    return recorder.steps, out


def captured(model: Any, ids: torch.Tensor) -> list[dict[str, Any]]:
    """Queries and keys of every layer for one unpadded sequence, without a cache and without surefoot."""
    name = model.config._attn_implementation
    original = ALL_ATTENTION_FUNCTIONS.get(name)
    calls: list[dict[str, Any]] = []

    def spy(module: Any, query: Any, key: Any, value: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append({"q": query[0].double().numpy(), "k": key[0].double().numpy(), **kwargs})
        attend = original or sys.modules[type(module).__module__].eager_attention_forward
        return attend(module, query, key, value, mask, *args, **kwargs)

    ALL_ATTENTION_FUNCTIONS[name] = spy
    try:
        with torch.inference_mode():
            model(input_ids=ids, use_cache=False)
    finally:
        del ALL_ATTENTION_FUNCTIONS[name]
        if original is not None and ALL_ATTENTION_FUNCTIONS.get(name) is None:
            ALL_ATTENTION_FUNCTIONS[name] = original
    return calls


def reference(calls: list[dict[str, Any]], position: int, windows: list[int | None]) -> dict[str, np.ndarray]:
    """Each statistic ``(L, H)`` of the query at ``position``, by the textbook."""
    out: dict[str, list[list[float]]] = {name: [] for name in STATISTICS}
    for call, window in zip(calls, windows, strict=True):
        rows: dict[str, list[float]] = {name: [] for name in STATISTICS}
        heads, kv_heads = call["q"].shape[0], call["k"].shape[0]
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(heads):
            q = call["q"][head, position]
            keys = call["k"][head // (heads // kv_heads), first : position + 1]
            c = np.array([q @ k / (np.linalg.norm(q) * np.linalg.norm(k)) for k in keys])
            d = c - c.mean()
            scale = call.get("scaling")
            logits = keys @ q * (q.shape[0] ** -0.5 if scale is None else scale)
            if call.get("softcap"):
                logits = call["softcap"] * np.tanh(logits / call["softcap"])
            p = np.exp(logits - logits.max())
            p /= p.sum()
            values = {
                "mean": c.mean(),
                "std": math.sqrt((d**2).mean()),
                "kurtosis": (d**4).mean() / (d**2).mean() ** 2,
                "skewness": (d**3).mean() / (d**2).mean() ** 1.5,
                "entropy": -(p * np.log(p)).sum(),
                "previous": p[-2],
                "sink": p[0],
            }
            for name, value in values.items():
                rows[name].append(value)
        for name in STATISTICS:
            out[name].append(rows[name])
    return {name: np.array(value) for name, value in out.items()}


def windows_of(model: Any) -> list[int | None]:
    config = model.config
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return [config.sliding_window if kind == "sliding_attention" else None for kind in kinds]
    return [getattr(config, "sliding_window", None)] * config.num_hidden_layers


def assert_equal(signals: Signals, row: int, wanted: dict[str, np.ndarray]) -> None:
    for name in STATISTICS:
        got = signals.attention.get(name)[row].double().numpy()
        np.testing.assert_allclose(got, wanted[name], rtol=2e-3, atol=2e-4, err_msg=name)


def prompt(length: int, seed: int = 2) -> torch.Tensor:
    return torch.randint(3, 97, (1, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("cache", FOUR_CACHES)
@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        ("llama", "sdpa"), ("llama", "eager"), ("mistral", "sdpa"), ("mistral", "eager"), ("gemma3_text", "sdpa"),
        ("gemma3_text", "eager"), ("gemma2", "eager"), ("gpt2", "sdpa"), ("gpt_neox", "eager"), ("qwen3", "sdpa"),
    ],
)  # fmt: skip
def test_every_step_equals_the_reference(tiny: Any, name: str, implementation: str, cache: str) -> None:
    model = tiny(name, implementation)
    length = 10  # the window of sliding layers is passed during the answer
    steps, out = measure(model, prompt(length), **FOUR_CACHES[cache])
    calls = captured(model, out)
    assert len(steps) == STEPS
    for i, signals in enumerate(steps):
        assert_equal(signals, 0, reference(calls, length - 1 + i, windows_of(model)))


@pytest.mark.parametrize("cache", FOUR_CACHES)
@pytest.mark.parametrize(
    ("name", "implementation"), [("llama", "sdpa"), ("llama", "eager"), ("gemma3_text", "sdpa"), ("gpt2", "sdpa")]
)
def test_a_left_padded_row_equals_the_reference_of_the_row_alone(
    tiny: Any, name: str, implementation: str, cache: str
) -> None:
    model = tiny(name, implementation)
    short, long = prompt(9, seed=3), prompt(14, seed=4)
    ids = torch.cat([torch.cat([torch.zeros(1, 5, dtype=torch.int64), short], 1), long])
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    steps, out = measure(model, ids, mask, **FOUR_CACHES[cache])
    calls = captured(model, out[:1, 5:])
    for i, signals in enumerate(steps):
        assert_equal(signals, 0, reference(calls, 8 + i, windows_of(model)))


def test_a_prompt_longer_than_the_window_equals_the_reference(tiny: Any) -> None:
    model = tiny("mistral")
    steps, out = measure(model, prompt(30))
    assert_equal(steps[0], 0, reference(captured(model, out), 29, windows_of(model)))


def test_a_prompt_longer_than_the_window_equals_the_reference_with_a_static_cache(tiny: Any) -> None:
    model = tiny("gemma3_text")
    steps, out = measure(model, prompt(30), cache_implementation="static")
    calls = captured(model, out)
    for i, signals in enumerate(steps):
        assert_equal(signals, 0, reference(calls, 29 + i, windows_of(model)))


def test_chunked_prefill_measures_the_last_position(tiny: Any) -> None:
    model = tiny()
    steps, out = measure(model, prompt(13), prefill_chunk_size=5)
    assert_equal(steps[0], 0, reference(captured(model, out), 12, windows_of(model)))


def test_the_weight_statistics_equal_the_models_own_attention_weights(tiny: Any) -> None:
    model = tiny("llama", "eager")
    ids = prompt(15)
    probe = Probe(model, profile())
    with torch.inference_mode(), probe.watching():
        output = model(input_ids=ids, output_attentions=True)
    signals = probe.signals(output.logits[:, -1])
    weights = torch.stack([a[0, :, -1] for a in output.attentions]).double()  # (L, H, T)
    entropy = -(weights * weights.log()).sum(-1)
    for name, wanted in {"entropy": entropy, "previous": weights[..., -2], "sink": weights[..., 0]}.items():
        torch.testing.assert_close(signals.attention.get(name)[0].double(), wanted, rtol=1e-4, atol=1e-5)


def test_reading_measures_every_position_as_the_reference(tiny: Any) -> None:
    model = tiny("gemma3_text")
    ids = prompt(20)
    probe = Probe(model, profile(), every_position=True)
    with torch.inference_mode(), probe.watching():
        logits = model(input_ids=ids, use_cache=False).logits[0]
    signals = probe.signals(logits)
    calls = captured(model, ids)
    for position in (7, 11, 12, 19):
        assert_equal(signals, position, reference(calls, position, windows_of(model)))


def test_moments_are_undefined_with_fewer_keys_than_asked_for(tiny: Any) -> None:
    steps, _ = measure(tiny(), prompt(6))
    defined = [bool(s.kurtosis.isfinite().all()) for s in steps]
    assert defined == [False, False, True, True]  # 6, 7, 8, 9 keys


def test_the_trace_holds_the_mean_over_heads_and_layers_of_the_default_model(smollm: Any) -> None:
    model, tokenizer = smollm
    inputs = tokenizer("The three primary colours are red, green and", return_tensors="pt")
    with surefoot.attach(model, "observe") as footing:
        out = model.generate(**inputs, max_new_tokens=3, do_sample=False)
    calls = captured(model, out)
    start = inputs["input_ids"].shape[1]
    for i, token in enumerate(footing.traces[0].tokens):
        wanted = reference(calls, start - 1 + i, windows_of(model))
        assert token.kurtosis == pytest.approx(wanted["kurtosis"].mean(), rel=1e-4)
        assert token.std == pytest.approx(wanted["std"].mean(), rel=1e-4)


def test_the_trace_holds_the_entropy_of_the_next_token(smollm: Any) -> None:
    model, tokenizer = smollm
    inputs = tokenizer("The three primary colours are red, green and", return_tensors="pt")
    with surefoot.attach(model, "observe") as footing:
        model.generate(**inputs, max_new_tokens=1, do_sample=True, temperature=0.5)
    with torch.inference_mode():
        log_p = model(**inputs).logits[0, -1].double().log_softmax(-1)
    assert footing.traces[0].tokens[0].entropy == pytest.approx(float(-(log_p.exp() * log_p).sum()), rel=1e-4)


def test_a_padded_row_of_the_default_model_has_the_numbers_of_the_row_alone(smollm: Any) -> None:
    model, tokenizer = smollm
    texts = ["The capital of France is the city of", "Once upon a time, in a small village by the sea, there lived an"]
    settings = {"max_new_tokens": 4, "do_sample": False}
    with surefoot.attach(model, "observe") as footing:
        model.generate(**tokenizer(texts, return_tensors="pt", padding=True, padding_side="left"), **settings)
        together = footing.traces[0].tokens
        model.generate(**tokenizer(texts[:1], return_tensors="pt"), **settings)
        alone = footing.traces[0].tokens
    for a, b in zip(together, alone, strict=True):
        assert a.id == b.id
        assert a.kurtosis == pytest.approx(b.kurtosis, rel=1e-4)
        assert a.std == pytest.approx(b.std, rel=1e-4)
        assert a.entropy == pytest.approx(b.entropy, rel=1e-4)


def test_a_sample_of_the_keys_comes_close_to_all_of_them(smollm: Any) -> None:
    model, tokenizer = smollm
    text = "\n\n".join(load_corpus(None).items[:60])
    ids = tokenizer(text, return_tensors="pt")["input_ids"][:, :600]
    found = []
    for max_keys in (None, 128):
        probe = Probe(model, profile(max_keys=max_keys))
        with torch.inference_mode(), probe.watching():
            logits = model(input_ids=ids, logits_to_keep=1).logits[:, -1]
        found.append(float(probe.signals(logits).kurtosis))
    assert ids.shape[1] == 600
    assert found[0] != found[1]
    assert found[1] == pytest.approx(found[0], rel=0.15)
