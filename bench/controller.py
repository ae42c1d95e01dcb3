"""Time of one `Controller.decide` for a full batch, on one core.

python bench/controller.py
"""

from __future__ import annotations

from typing import Any

import torch

from common import median_us, parser, report
from surefoot.control import Controller, Profile, load_profile
from surefoot.control.machine import FIXED, S1, S3, Machine
from surefoot.signals import AttentionStatistics, LogitStatistics, Signals


def made_up(profile: Profile, slots: int, heads: int) -> Signals:
    """Signals that walk through all states."""
    layers = 30 if profile.probe.layers == "all" else len(profile.probe.layers)
    kurtosis = torch.rand(slots, layers, heads) * 6 + 1
    attention = AttentionStatistics(*(kurtosis * f for f in (0.1, 0.01, 1.0, 0.1)))
    row = torch.rand(slots)
    logits = LogitStatistics(row * 4, row > 0.99)
    return Signals(attention, logits, torch.rand(slots) if profile.consistency else None)


def main() -> None:
    args_parser = parser(__doc__ or "")
    args_parser.add_argument("--slots", type=int, default=256)
    args_parser.add_argument("--heads", type=int, default=9)
    args = args_parser.parse_args()
    torch.set_num_threads(args.threads or 1)
    slots = torch.randperm(args.slots)
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        for name in ("careful", "creative", "article"):
            profile = load_profile(name)
            signals = made_up(profile, args.slots, args.heads)
            controller = Controller(profile, args.slots)
            controller.reset(slots, 0.7, 0.9)
            # The device path: the same machine on torch arrays.
            machine = Machine(profile, torch, torch.device("cpu"))
            state = torch.zeros(FIXED + machine.window - 1, args.slots)
            state[S1 : S3 + 1] = torch.nan
            score = signals.kurtosis
            inputs = (score, signals.std, signals.logits.entropy, signals.logits.forced, signals.consistency, score)
            rows.append(
                {
                    "profile": name,
                    "probed heads": signals.attention.kurtosis[0].numel(),
                    "decide, us": median_us(lambda c=controller, s=signals: c.decide(s, slots)),
                    "machine on torch, us": median_us(lambda m=machine, s=state, i=inputs: m.advance(s, *i, slots)),
                }
            )
    report(args, f"decide for {args.slots} slots", {"threads": torch.get_num_threads()}, rows)


if __name__ == "__main__":
    main()
