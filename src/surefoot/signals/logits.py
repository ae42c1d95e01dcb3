"""What the logits of one decoding step say."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LogitStatistics:
    """Statistics of the next-token distribution at temperature 1, each ``(B,)`` float32.

    Attributes
    ----------
    entropy : Tensor
        Shannon entropy, in nats; NaN where the logits hold NaN or +inf, or nothing but -inf.
    varentropy : Tensor
        Variance of the surprisal -log p, in nats squared.
    top_probability : Tensor
        Probability of the likeliest token.
    margin : Tensor or None
        Probability of the likeliest token minus that of the next; None unless asked for.
    forced : Tensor
        bool: a single token is possible (a grammar left no choice), so entropy 0 says nothing about the model.
    """

    entropy: Tensor
    varentropy: Tensor
    top_probability: Tensor
    margin: Tensor | None
    forced: Tensor


def logit_statistics(logits: Tensor, *, margin: bool = False) -> LogitStatistics:
    """Statistics of ``logits`` ``(B, V)``, any float dtype; -inf marks a token that a mask excludes."""
    x = logits.float()
    d = x - x.amax(-1, keepdim=True)
    e = d.exp()
    z = e.sum(-1)
    margin_value = None
    if margin:
        two = e.topk(min(2, e.shape[-1]), -1).values
        margin_value = (two[:, 0] - two[:, -1]) / z if two.shape[-1] > 1 else 1.0 / z
    possible = x.shape[-1] - torch.isneginf(x).sum(-1)
    # exp(-inf) * -inf is NaN where the limit is 0; the clamp makes the product 0 * finite instead.
    d.clamp_(min=torch.finfo(torch.float32).min / 4)
    e.mul_(d)  # in place: with a large vocabulary, memory is what this costs
    first = e.sum(-1) / z
    second = torch.linalg.vecdot(e, d) / z
    entropy = z.log() - first
    return LogitStatistics(
        entropy=entropy,
        varentropy=(second - first * first).clamp(min=0.0),
        top_probability=1.0 / z,
        margin=margin_value,
        forced=(possible == 1) & (entropy == entropy),
    )
