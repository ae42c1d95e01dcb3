"""Shared models: the default one, and tiny random ones of other architectures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from surefoot.models import load_model

# A second thread waits at a barrier after every operation; beside other work that is 20 times slower, not faster.
torch.set_num_threads(1)

WINDOW = 12
_SIZES = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "initializer_range": 0.3,
    "eos_token_id": 1, "bos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_MHA = {k: v for k, v in _SIZES.items() if k not in ("num_key_value_heads", "head_dim")}
_MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _SIZES,
    "mistral": _SIZES | {"sliding_window": WINDOW},
    "qwen3": _SIZES,
    "gemma3_text": _SIZES | _MIXED,
    "gemma2": _SIZES | _MIXED | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 30.0},
    "phi3": _SIZES,
    "olmo2": _SIZES,
    "gpt_neox": _MHA,
    "gpt2": _MHA | {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256},
}


def make_tiny(architecture: str = "llama", implementation: str = "sdpa", **changes: Any) -> Any:
    config = AutoConfig.for_model(architecture, **(CONFIGS[architecture] | changes))
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()


def make_byte_tokenizer() -> Any:
    """One token a byte: every character that is not ASCII needs several."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(["<pad>", "<eos>", "<bos>", *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>",
        clean_up_tokenization_spaces=False,
    )  # fmt: skip


@pytest.fixture(scope="session")
def smollm() -> tuple[Any, Any]:
    """The default model and its tokenizer."""
    return load_model()


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Any]:
    """``tiny(architecture, implementation)``: a random model, made once."""
    made: dict[tuple[str, str], Any] = {}

    def get(architecture: str = "llama", implementation: str = "sdpa") -> Any:
        if (architecture, implementation) not in made:
            made[architecture, implementation] = make_tiny(architecture, implementation)
        return made[architecture, implementation]

    return get


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Any]:
    """``make_model(architecture, implementation, **changes)``: a fresh random model, to be altered at will."""
    return make_tiny


@pytest.fixture(scope="session")
def byte_tokenizer() -> Any:
    return make_byte_tokenizer()


@pytest.fixture
def byte_model(byte_tokenizer: Any) -> tuple[Any, Any]:
    """A tiny llama that speaks bytes, and its tokenizer."""
    return make_tiny("llama", vocab_size=len(byte_tokenizer)), byte_tokenizer
