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
    forced : Tensor
        bool: every other token has probability 0 in float32 (a grammar left no choice), so entropy 0 says nothing about
        the model.
    varentropy : Tensor or None
        Variance of the surprisal -log p, in nats squared.
    top_probability : Tensor or None
        Probability of the likeliest token.
    margin : Tensor or None
        Probability of the likeliest token minus that of the next.
    """

    entropy: Tensor
    forced: Tensor
    varentropy: Tensor | None = None
    top_probability: Tensor | None = None
    margin: Tensor | None = None


def logit_statistics(logits: Tensor, *, everything: bool = False) -> LogitStatistics:
    """Statistics of the next-token distribution.

    Parameters
    ----------
    logits : Tensor
        ``(B, V)``, any float dtype; -inf marks a token that a mask excludes.
    everything : bool
        False leaves out what the state machine does not read: with a large vocabulary each pass over it counts.
    """
    x = logits.float()
    d = x - x.amax(-1, keepdim=True)
    e = d.exp()
    z = e.sum(-1)
    possible = e.count_nonzero(-1)
    # exp(-inf) * -inf is NaN where the limit is 0; the clamp makes the product 0 * finite instead.
    d.clamp_(min=torch.finfo(torch.float32).min / 4)
    first = torch.linalg.vecdot(e, d) / z
    entropy = z.log() - first
    forced = (possible == 1) & (entropy == entropy)
    if not everything:
        return LogitStatistics(entropy, forced)
    two = e.topk(min(2, e.shape[-1]), -1).values
    margin = (two[:, 0] - two[:, 1]) / z if two.shape[-1] > 1 else 1.0 / z
    second = torch.linalg.vecdot(e * d, d) / z
    return LogitStatistics(entropy, forced, (second - first * first).clamp(min=0.0), 1.0 / z, margin)
