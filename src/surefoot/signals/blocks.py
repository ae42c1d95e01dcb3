"""How much neighbouring blocks of the network agree."""

from __future__ import annotations

import torch
from torch import Tensor


def block_consistency(hidden: Tensor) -> Tensor:
    """Mean cosine between the outputs of adjacent blocks (S6.2).

    Parameters
    ----------
    hidden : Tensor
        ``(L, B, D)``: the residual stream behind each of L >= 2 blocks, at the current position.

    Returns
    -------
    Tensor
        ``(B,)`` float32, within [-1, 1].
    """
    hidden = hidden.float()
    return torch.cosine_similarity(hidden[:-1], hidden[1:], dim=-1).mean(0).clamp(-1, 1)  # rounding
