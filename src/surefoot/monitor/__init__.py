"""Prometheus metrics: the five of S9 under their names, and what else tells how a server does."""

from surefoot.monitor.metrics import Metrics

__all__ = ["Metrics"]
