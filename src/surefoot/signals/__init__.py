"""Measure: what a model's attention, logits and blocks say in one decoding step. Knows no engine and no HTTP."""

from surefoot.signals.attention import STATISTICS, AttentionStatistics, Statistic, attention_statistics
from surefoot.signals.blocks import block_consistency
from surefoot.signals.keys import KeySample
from surefoot.signals.logits import LogitStatistics, logit_statistics
from surefoot.signals.moments import Moments
from surefoot.signals.step import Signals

__all__ = [
    "STATISTICS",
    "AttentionStatistics",
    "KeySample",
    "LogitStatistics",
    "Moments",
    "Signals",
    "Statistic",
    "attention_statistics",
    "block_consistency",
    "logit_statistics",
]
