"""Act: apply overrides to logits and draw."""

from __future__ import annotations

import torch
from torch import Tensor


def limit_top_p(scores: Tensor, top_p: Tensor) -> Tensor:
    """Exclude the unlikeliest tokens, keeping a mass of at least ``top_p`` in each row (Holtzman et al., 2020).

    The same arithmetic as Transformers' `TopPLogitsWarper`, with a limit of its own for each row, so that a row whose
    limit is the request's keeps the very same tokens.

    Parameters
    ----------
    scores : Tensor
        ``(B, V)`` float32, after the temperature.
    top_p : Tensor
        ``(B,)``; 1 keeps everything.

    Returns
    -------
    Tensor
        ``(B, V)``, -inf where excluded.
    """
    ordered, index = torch.sort(scores, descending=False)
    # Limits travel as float32; six decimals bring back the number that was asked for.
    below = (1.0 - top_p.double().round(decimals=6)).to(scores.dtype).unsqueeze(-1)
    remove = ordered.softmax(-1).cumsum(-1) <= below
    remove[..., -1] = False
    return scores.masked_fill(remove.scatter(1, index, remove), -torch.inf)


def limit_top_k(scores: Tensor, top_k: int) -> Tensor:
    """Exclude all but the ``top_k`` likeliest tokens of each row."""
    if top_k >= scores.shape[-1]:
        return scores
    return scores.masked_fill(scores < scores.topk(top_k, -1).values[..., -1:], -torch.inf)


def draw(
    logits: Tensor,
    temperature: float,
    top_p: float,
    *,
    top_k: int | None = None,
    times: int = 1,
    generator: torch.Generator | None = None,
) -> int:
    """Draw the next token of one request.

    Parameters
    ----------
    logits : Tensor
        ``(1, V)``.
    temperature, top_p : float
        As decided for this token; temperature 0 takes the likeliest.
    top_k : int, optional
        Limit of the request.
    times : int
        Draw so often and take the last; 2 is the resampling of S6.2.
    """
    if temperature <= 0:
        return int(logits.argmax(-1))
    scores = logits.float()
    if temperature != 1:
        scores = scores / temperature
    if top_k:
        scores = limit_top_k(scores, top_k)
    if top_p < 1:
        scores = limit_top_p(scores, torch.tensor([top_p], dtype=torch.float64, device=scores.device))
    probabilities = scores.softmax(-1)
    token = 0
    for _ in range(times):
        token = int(torch.multinomial(probabilities, 1, generator=generator))
    return token
