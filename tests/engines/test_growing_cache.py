"""The growing cache holds what the library's dynamic cache holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, LlamaConfig

from surefoot.engines.cache import ROOM, GrowingLayer, growing_cache

CONFIG = LlamaConfig(
    num_hidden_layers=1, hidden_size=4, num_attention_heads=2, num_key_value_heads=1, intermediate_size=4, vocab_size=5
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 2 * ROOM), min_size=1, max_size=6), st.integers(1, 3))
def test_any_chunks_give_the_states_of_a_dynamic_cache(lengths: list[int], batch: int) -> None:
    ours, theirs = growing_cache(CONFIG), DynamicCache(config=CONFIG)
    generator = torch.Generator().manual_seed(0)
    for n in lengths:
        k, v = (torch.randn(batch, 1, n, 2, generator=generator) for _ in range(2))
        for a, b in zip(ours.update(k, v, 0), theirs.update(k, v, 0), strict=True):
            assert torch.equal(a, b)
    assert ours.get_seq_length() == theirs.get_seq_length() == sum(lengths)


def test_token_by_token_does_not_copy_while_there_is_room() -> None:
    cache = growing_cache(CONFIG)
    cache.update(torch.randn(1, 1, 3, 2), torch.randn(1, 1, 3, 2), 0)
    before = cache.layers[0].keys.data_ptr()
    cache.update(torch.randn(1, 1, 1, 2), torch.randn(1, 1, 1, 2), 0)
    assert cache.layers[0].keys.data_ptr() == before


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3_text", "gpt2", "qwen3"])
def test_a_model_gives_the_same_logits(tiny: Any, name: str) -> None:
    model = tiny(name)
    ids = torch.randint(3, 97, (1, 26), generator=torch.Generator().manual_seed(0))
    logits = []
    for cache in (growing_cache(model.config), DynamicCache(config=model.config)):
        with torch.inference_mode():
            out = [model(input_ids=ids[:, :18], cache=cache, use_cache=True).logits]
            out += [model(input_ids=ids[:, i : i + 1], cache=cache).logits for i in range(18, 26)]
        logits.append(torch.cat(out, 1))
    assert torch.equal(*logits)


def test_sliding_layers_are_left_to_the_library(tiny: Any) -> None:
    cache = growing_cache(tiny("gemma3_text").config)
    assert [isinstance(layer, GrowingLayer) for layer in cache.layers] == [False, True, False]
