"""A model's baseline: its signals, head by head, on a corpus, without labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from surefoot.control import Profile
from surefoot.control.profile import Probe as ProbeSettings
from surefoot.control.recipe import Recipe, features
from surefoot.engines.chat import chat_text, context_length, end_ids
from surefoot.engines.probe import Probe
from surefoot.errors import InputError, NonFiniteLogitsError
from surefoot.signals import Signals, Statistic
from surefoot.tune.data import Corpus

Array = np.ndarray[Any, Any]
# Sampled as a request would be: greedy answers of a small model run in circles, and circles are sure of themselves.
TEMPERATURE = 0.7
TOKENS_PER_PROMPT = 48
TOKENS_PER_PASSAGE = 512


@dataclass(frozen=True, slots=True)
class Baseline:
    """One row a token.

    Attributes
    ----------
    features : Array
        ``(N, S, L, H)`` float32: inputs of a linear recipe (`recipe.features`) by statistic, layer and head.
    entropy : Array
        ``(N,)`` nats.
    kurtosis : Array
        ``(N,)`` mean over layers and heads.
    group, sequence : Array
        ``(N,)`` integers: what cross-validation keeps together; which answer or passage the token is of.
    """

    statistics: tuple[Statistic, ...]
    features: Array
    entropy: Array
    kurtosis: Array
    group: Array
    sequence: Array


def record_baseline(
    model: Any,
    tokenizer: Any,
    corpus: Corpus,
    *,
    statistics: tuple[Statistic, ...] = ("kurtosis",),
    batch: int = 8,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Baseline:
    """Let the model answer (or read) a corpus, and keep what its attention said.

    Parameters
    ----------
    model, tokenizer
        A Transformers causal language model.
    corpus : Corpus
    statistics : tuple of str
        Attention statistics to keep.
    batch : int
        Prompts answered together.
    seed : int
        For the sampling of answers.
    progress : callable
        Told how many items are done.
    """
    if batch < 1:
        raise InputError(f"the batch must be at least 1, got {batch}.")
    profile = Profile(
        name="baseline",
        probe=ProbeSettings(layers="all", max_keys=None),
        recipe=Recipe(kind="mean_kurtosis", statistics=statistics),
    )
    parts: list[tuple[Tensor, Tensor, Tensor, int]] = []
    read = _read if corpus.running_text else _answer
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        with torch.inference_mode():
            for start in range(0, len(corpus.items), batch):
                parts += read(model, tokenizer, profile, corpus.items[start : start + batch], start)
                progress(min(start + batch, len(corpus.items)))
    finally:
        torch.random.set_rng_state(state)
    if not parts:
        raise InputError(
            "no item of the corpus can be measured: all are too short, or leave no room in the model's context.",
            "Use other texts or prompts.",
        )
    x, entropy, kurtosis = (torch.cat(column).numpy() for column in list(zip(*parts, strict=True))[:3])
    lengths = [len(p[1]) for p in parts]
    names = {g: i for i, g in enumerate(dict.fromkeys(corpus.groups))}
    items = [p[3] for p in parts]
    sequence = np.repeat(np.arange(len(parts)), lengths)
    group = np.repeat([names[corpus.groups[i]] for i in items], lengths)
    if not np.isfinite(entropy).all():
        raise NonFiniteLogitsError(int(np.flatnonzero(~np.isfinite(entropy))[0]) + 1)
    defined = np.isfinite(x).all(axis=(1, 2, 3))
    return Baseline(statistics, x[defined], entropy[defined], kurtosis[defined], group[defined], sequence[defined])


def _kept(signals: Signals, statistics: tuple[Statistic, ...]) -> tuple[Tensor, Tensor, Tensor]:
    layers, heads = signals.attention.kurtosis.shape[1:]
    x = features(signals.attention, statistics).unflatten(1, (len(statistics), layers, heads))
    return x.cpu(), signals.logits.entropy.cpu(), signals.kurtosis.cpu()


class Recorder(LogitsProcessor):
    """Keeps the signals of each step of ``generate``, which must run while the probe is watching.

    Attributes
    ----------
    steps : list of Signals
    """

    def __init__(self, probe: Probe) -> None:
        self.steps: list[Signals] = []
        self._probe = probe

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Measure the step that made ``scores``, and leave them as they are."""
        self.steps.append(self._probe.signals(scores))
        return scores


def _answer(
    model: Any, tokenizer: Any, profile: Profile, prompts: list[str], first: int
) -> list[tuple[Tensor, Tensor, Tensor, int]]:
    probe = Probe(model, profile)
    recorder = Recorder(probe)
    context = context_length(model)
    texts = {}
    for i, prompt in enumerate(prompts, first):
        text = chat_text(tokenizer, prompt)
        length = len(tokenizer(text, add_special_tokens=False)["input_ids"])
        if context is None or length + TOKENS_PER_PROMPT <= context:  # otherwise there is no room for an answer
            texts[i] = text
    if not texts:
        return []
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token_id = pad
    inputs = tokenizer(
        list(texts.values()), return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False
    )
    with probe.watching():
        output = model.generate(
            **{k: v.to(model.device) for k, v in inputs.items() if k in ("input_ids", "attention_mask")},
            max_new_tokens=TOKENS_PER_PROMPT,
            do_sample=True,
            temperature=TEMPERATURE,
            top_k=0,
            top_p=1.0,
            pad_token_id=pad,
            logits_processor=LogitsProcessorList([recorder]),
        )
    answers = output[:, inputs["input_ids"].shape[1] :]
    ends = torch.tensor(sorted(end_ids(model, tokenizer)), device=answers.device)
    kept = [_kept(signals, profile.recipe.statistics) for signals in recorder.steps]
    steps = [torch.stack(column) for column in zip(*kept, strict=True)]
    parts = []
    for b, item in enumerate(texts):
        ended = torch.isin(answers[b], ends).nonzero()
        length = int(ended[0, 0]) + 1 if len(ended) else len(recorder.steps)
        x, entropy, kurtosis = (s[:length, b] for s in steps)
        parts.append((x, entropy, kurtosis, item))
    return parts


def _read(
    model: Any, tokenizer: Any, profile: Profile, passages: list[str], first: int
) -> list[tuple[Tensor, Tensor, Tensor, int]]:
    probe = Probe(model, profile, every_position=True)
    parts = []
    for i, passage in enumerate(passages):
        length = min(TOKENS_PER_PASSAGE, context_length(model) or TOKENS_PER_PASSAGE)
        ids = tokenizer(passage, return_tensors="pt", truncation=True, max_length=length)["input_ids"]
        if ids.shape[1] <= profile.probe.min_keys:
            continue
        with probe.watching():
            logits = model(input_ids=ids.to(model.device), use_cache=False).logits[0]
        parts.append((*_kept(probe.signals(logits), profile.recipe.statistics), first + i))
    return parts
