"""With the profile 'observe', `generate` gives the very tokens it gives without surefoot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList

import surefoot

TEXTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "1, 2, 3, 4, 5,",
    "Water boils at",
    "A list of fruit: apple, banana,",
    "To be or not to be, that is the question whether",
    "Hi",
    "def add(a, b):\n    return",
]
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "t07_p09": {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 0},
    "t1": {"do_sample": True, "temperature": 1.0, "top_k": 0},
    "top_k": {"do_sample": True, "temperature": 1.0, "top_k": 20},
    "min_p": {"do_sample": True, "temperature": 0.9, "min_p": 0.05, "top_k": 0},
}
MODELS = [
    (name, implementation)
    for name in ("llama", "mistral", "qwen3", "gemma3_text", "gemma2", "phi3", "olmo2", "gpt_neox", "gpt2")
    for implementation in ("sdpa", "eager")
    if (name, implementation) != ("gemma2", "sdpa")
]


class Ban(LogitsProcessor):
    """A user's own processor."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        scores[:, self.tokens] = -torch.inf
        return scores


def both(model: Any, inputs: dict[str, Any], seed: int = 5, **settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Output without and with surefoot; callables among ``settings`` make a fresh value for each."""

    def call() -> torch.Tensor:
        torch.manual_seed(seed)
        made = {k: v() if callable(v) else v for k, v in settings.items()}
        return model.generate(**inputs, **made)

    plain = call()
    with surefoot.attach(model, "observe") as footing:
        steadied = call()
    assert footing.traces, "nothing was observed"
    return plain, steadied


def padded(model: Any, rows: int = 2, longest: int = 10) -> dict[str, torch.Tensor]:
    """Random prompts of a tiny model, left-padded."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 97, (rows, longest), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        ids[row, : 3 * row], mask[row, : 3 * row] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("batch", [1, 8])
def test_the_default_model_gives_the_same_tokens(smollm: Any, batch: int, sampling: str) -> None:
    model, tokenizer = smollm
    inputs = dict(tokenizer(TEXTS[:batch], return_tensors="pt", padding=True, padding_side="left"))
    plain, steadied = both(model, inputs, max_new_tokens=8 if batch > 1 else 16, **SAMPLINGS[sampling])
    assert torch.equal(plain, steadied)


@pytest.mark.parametrize("sampling", ["greedy", "t07_p09"])
def test_the_default_model_gives_the_same_tokens_with_a_static_cache(smollm: Any, sampling: str) -> None:
    model, tokenizer = smollm
    inputs = dict(tokenizer(TEXTS[:2], return_tensors="pt", padding=True, padding_side="left"))
    plain, steadied = both(model, inputs, max_new_tokens=8, cache_implementation="static", **SAMPLINGS[sampling])
    assert torch.equal(plain, steadied)


@pytest.mark.parametrize("cache", ["default", "dynamic", "static", "none"])
@pytest.mark.parametrize(("name", "implementation"), MODELS)
def test_every_architecture_gives_the_same_tokens_with_every_cache(
    tiny: Any, name: str, implementation: str, cache: str
) -> None:
    model = tiny(name, implementation)
    settings: dict[str, Any] = {
        "default": {},  # sliding layers keep a window only
        "dynamic": {"cache": DynamicCache},  # sliding layers keep everything
        "static": {"cache_implementation": "static"},
        "none": {"use_cache": False},
    }[cache]
    plain, steadied = both(model, padded(model), max_new_tokens=8, **SAMPLINGS["t07_p09"], **settings)
    assert torch.equal(plain, steadied)


@pytest.mark.parametrize(("name", "implementation"), MODELS)
def test_every_architecture_gives_the_same_greedy_tokens(tiny: Any, name: str, implementation: str) -> None:
    model = tiny(name, implementation)
    plain, steadied = both(model, padded(model, rows=1), max_new_tokens=6, do_sample=False)
    assert torch.equal(plain, steadied)


def test_a_users_logits_processor_and_repetition_penalty_still_work(tiny: Any) -> None:
    model = tiny()
    banned = [20, 21, 22, 23]
    settings = {"logits_processor": lambda: LogitsProcessorList([Ban(banned)]), "repetition_penalty": 1.3}
    plain, steadied = both(model, padded(model), max_new_tokens=12, **SAMPLINGS["t07_p09"], **settings)
    assert torch.equal(plain, steadied)
    assert not torch.isin(steadied[:, 10:], torch.tensor(banned)).any()


@pytest.mark.parametrize(
    "more",
    [
        {"typical_p": 0.8},
        {"epsilon_cutoff": 0.01},
        {"renormalize_logits": True, "top_p": 0.7},
        {"num_return_sequences": 3},
        {"prefill_chunk_size": 4},
        {"top_p": 0.5, "top_k": 5, "min_p": 0.02},
    ],
    ids="+".join,
)
def test_other_settings_of_generate_give_the_same_tokens(tiny: Any, more: dict[str, Any]) -> None:
    model = tiny()
    settings = {"do_sample": True, "temperature": 0.8, "top_k": 0} | more
    plain, steadied = both(model, padded(model), max_new_tokens=8, **settings)
    assert torch.equal(plain, steadied)


def test_a_prompt_of_one_token_gives_the_same_tokens_with_a_static_cache(tiny: Any) -> None:
    model = tiny()
    plain, steadied = both(
        model, {"input_ids": torch.tensor([[2]])}, max_new_tokens=8, do_sample=False, cache_implementation="static"
    )
    assert torch.equal(plain, steadied)


def test_input_embeddings_give_the_same_tokens(tiny: Any) -> None:
    model = tiny()
    inputs = padded(model)
    inputs["inputs_embeds"] = model.get_input_embeddings()(inputs.pop("input_ids")).detach()
    plain, steadied = both(model, inputs, max_new_tokens=6, do_sample=False)
    assert torch.equal(plain, steadied)


def test_scores_asked_for_are_the_same(tiny: Any) -> None:
    model = tiny()
    settings = {"max_new_tokens": 4, "return_dict_in_generate": True, "output_scores": True, "do_sample": True}
    torch.manual_seed(0)
    plain = model.generate(**padded(model), **settings)
    torch.manual_seed(0)
    with surefoot.attach(model, "observe"):
        steadied = model.generate(**padded(model), **settings)
    assert torch.equal(torch.stack(plain.scores), torch.stack(steadied.scores))


def test_a_profile_that_only_measures_gives_the_same_tokens(tiny: Any) -> None:
    model = tiny()
    settings = {"max_new_tokens": 8} | SAMPLINGS["t07_p09"]
    torch.manual_seed(3)
    plain = model.generate(**padded(model), **settings)
    torch.manual_seed(3)
    with surefoot.attach(model, "article", acting=False):
        measured = model.generate(**padded(model), **settings)
    assert torch.equal(plain, measured)


def test_the_users_generation_config_is_left_alone(tiny: Any) -> None:
    model = tiny()
    before = model.generation_config.to_dict()
    with surefoot.attach(model, "observe"):
        model.generate(**padded(model), max_new_tokens=2)
    assert model.generation_config.to_dict() == before
