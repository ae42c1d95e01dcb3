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
    log_p = logits.float().log_softmax(-1)
    p = log_p.exp()
    # Where p is 0, log p may be -inf and their product NaN; the clamp makes it 0.
    log_p = log_p.clamp_(min=torch.finfo(torch.float32).min)
    surprise = p * log_p
    entropy = -surprise.sum(-1)
    # Exactly 0 only if all other probabilities have vanished: a tiny one would still leave its p * log p.
    forced = entropy == 0
    if not everything:
        return LogitStatistics(entropy, forced)
    two = p.topk(min(2, p.shape[-1]), -1).values
    margin = two[:, 0] - two[:, 1] if two.shape[-1] > 1 else two[:, 0]
    varentropy = (surprise * log_p).sum(-1) - entropy.square()
    return LogitStatistics(entropy, forced, varentropy.clamp(min=0.0), two[:, 0], margin)
