"""What the attention of one decoding step says, per layer and head.

Averaging over heads throws the signal away (docs/results.md), so everything here keeps ``(B, L, H)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from surefoot.signals.moments import Moments

Statistic = Literal["mean", "std", "kurtosis", "skewness", "entropy", "previous", "sink"]
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
_OF_WEIGHTS = frozenset({"entropy", "previous", "sink"})


@dataclass(frozen=True, slots=True)
class AttentionStatistics:
    """Statistics of a query's attention, each ``(B, L, H)`` float32; None where it was not asked for.

    The first four describe the distribution of the cosine similarity between the query and its visible keys (S1), the
    last three the attention weights. The first three are always measured.

    Attributes
    ----------
    mean, std, kurtosis : Tensor
        Moments of cos(q, k); kurtosis is Pearson's (normal = 3). NaN with fewer visible keys than asked for.
    skewness : Tensor or None
        Third standardised moment of cos(q, k).
    entropy : Tensor or None
        Entropy of the attention weights, in nats.
    previous : Tensor or None
        Weight on the token before the current one (the reading of RAUQ, arXiv:2505.20045).
    sink : Tensor or None
        Weight on the first visible token (attention sink, arXiv:2309.17453).
    """

    mean: Tensor
    std: Tensor
    kurtosis: Tensor
    skewness: Tensor | None = None
    entropy: Tensor | None = None
    previous: Tensor | None = None
    sink: Tensor | None = None

    def get(self, name: Statistic) -> Tensor:
        """The statistic called ``name``; ValueError when it was not measured."""
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise ValueError(f"the attention statistic '{name}' was not measured; add it to the profile's probe")
        return value


def attention_statistics(
    dots: Tensor,
    query_norms: Tensor,
    key_norms: Tensor,
    *,
    wanted: frozenset[str] | set[str],
    scaling: float | Tensor = 1.0,
    softcap: float | None = None,
    weights: Tensor | None = None,
    min_keys: int = 8,
) -> AttentionStatistics:
    """Statistics of one query's attention in each layer and head.

    Parameters
    ----------
    dots : Tensor
        ``(L, B, Hkv, G, N)`` products q·k, before scaling; G query heads share each of the Hkv key heads.
    query_norms : Tensor
        ``(L, B, Hkv, G)`` Euclidean norms of the queries.
    key_norms : Tensor
        ``(L, B, Hkv, N)`` Euclidean norms of the keys.
    wanted : set of str
        Names out of `STATISTICS`; what costs extra (skewness, and a softmax for the weights) is computed when named.
    scaling : float
        What the model multiplies the products by before its softmax.
    softcap : float, optional
        The model's soft cap on attention logits (Gemma 2), if it has one.
    weights : Tensor, optional
        ``(B, N)``: 0 for a key the query does not see, otherwise the number of keys it stands for (`KeySample`).
        None when every key is visible and read.
    min_keys : int
        With fewer visible keys the moments are undefined: NaN.

    Returns
    -------
    AttentionStatistics
        Each ``(B, L, H)`` with H = Hkv * G, float32.
    """
    dots, key_norms = dots.float(), key_norms.float()
    # A key that is all zeros has no direction; its products are 0, and so is its cosine.
    cosines = (dots / (key_norms + torch.finfo(torch.float32).tiny).unsqueeze(-2)).flatten(2, 3)
    w = None if weights is None else weights[None, :, None, :]
    # The query's norm is common to all keys of a head, so it scales mean and std and leaves the shape alone.
    moments = Moments.of(cosines, w, third="skewness" in wanted)
    norms = query_norms.float().flatten(2, 3)
    values = {"mean": moments.mean / norms, "std": moments.std / norms, "kurtosis": moments.kurtosis}
    if "skewness" in wanted:
        values["skewness"] = moments.skewness
    if weights is not None or dots.shape[-1] < min_keys:
        # The weights of a sample add up to the count within rounding.
        enough = torch.as_tensor(moments.count, device=dots.device) >= min_keys - 0.5
        values = {name: torch.where(enough, value, torch.nan) for name, value in values.items()}
    if wanted & _OF_WEIGHTS:
        values |= _weight_statistics(dots.flatten(2, 3), scaling, softcap, w)
    return AttentionStatistics(**{name: value.transpose(0, 1) for name, value in values.items()})


def _weight_statistics(
    dots: Tensor, scaling: float | Tensor, softcap: float | None, weights: Tensor | None
) -> dict[str, Tensor]:
    scores = dots * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if weights is None:
        log_p = torch.log_softmax(scores, -1)
        p = log_p.exp()
        entropy = -torch.linalg.vecdot(p, log_p)
        sink = p[..., 0]
        previous = p[..., -2] if p.shape[-1] > 1 else torch.zeros_like(sink)
        return {"entropy": entropy, "previous": previous, "sink": sink}
    # A key that stands for w keys has w times its weight; its entropy term is that of w equal ones.
    seen = weights > 0
    scores = torch.where(seen, scores, -torch.inf)
    total = torch.logsumexp(scores + weights.log(), -1, keepdim=True)
    log_p = torch.where(seen, scores - total, 0.0)
    p = torch.where(seen, log_p.exp(), 0.0)
    entropy = -(weights * p * log_p).sum(-1)
    first = seen.to(torch.uint8).argmax(-1, keepdim=True).expand(*p.shape[:-1], 1)
    # Visible keys end at the query's own position; behind it a static cache has empty room.
    last = p.shape[-1] - 1 - seen.flip(-1).to(torch.uint8).argmax(-1, keepdim=True).expand(*p.shape[:-1], 1)
    sink = p.gather(-1, first).squeeze(-1)
    previous = torch.where(last > first, p.gather(-1, (last - 1).clamp(min=0)), 0.0).squeeze(-1)
    return {"entropy": entropy, "previous": previous, "sink": sink}
