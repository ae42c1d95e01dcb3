"""The controller once more, as plain code: one request, one token at a time, written from the documentation.

Also what the tests share: random profiles and sequences, signals made from scores, requests driven by hand.
"""

from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import strategies as st

from surefoot.control import Controller, State, parse_profile
from surefoot.control.overrides import STATE
from surefoot.signals import AttentionStatistics, LogitStatistics, Signals

f32 = np.float32


class Reference:
    """What docs/structures.md and rules.py say happens to one request."""

    def __init__(self, profile, temperature, top_p, acting):
        self.profile = profile
        self.own = (f32(temperature), f32(top_p))
        self.acting = acting
        self.smoothed = []  # of the defined scores in a row, oldest first
        self.entropies = []  # that count
        self.held, self.settings, self.left = State.NEUTRAL, self.own, 0
        self.decided = 0

    def step(self, score, std, entropy, forced, consistency):
        self.advance_state(score, std)
        blown = self.blow(entropy, forced)
        sampling = self.acting and self.own[0] > 0
        settings = self.settings if sampling else self.own
        rule = self.profile.consistency
        resample = bool(sampling and rule and consistency < f32(rule.threshold))
        stop = blown and self.acting
        changed = settings != self.own or stop or resample
        self.decided += changed
        return SimpleNamespace(
            state=State.FUSE if blown else self.held,
            temperature=settings[0],
            top_p=settings[1],
            stop=stop,
            resample=resample,
            sequence=self.decided if changed else 0,
        )

    def advance_state(self, score, std):
        asked = self.asked_for(score, std, self.jerk(score))
        held = self.held if self.left > 0 else State.NEUTRAL
        if asked > State.NEUTRAL and asked >= held:
            action = getattr(self.profile, asked.name.lower()).action
            self.held, self.settings, self.left = asked, self.settings_of(action, score), action.hold
        elif held == State.NEUTRAL:
            self.held, self.settings = State.NEUTRAL, self.own
        self.left -= 1

    def jerk(self, score):
        if np.isnan(score):
            self.smoothed.clear()
            return f32(np.nan)
        rule = self.profile.shock
        if self.smoothed and rule:
            last = self.smoothed[-1]
            score = last + f32(rule.smoothing) * (score - last)
        self.smoothed.append(score)
        if len(self.smoothed) < 4:
            return f32(np.nan)
        a, b, c, d = self.smoothed[-4:]
        return d - f32(3) * c + f32(3) * b - a

    def asked_for(self, score, std, jerk):
        p = self.profile
        if p.shock and abs(jerk) > f32(p.shock.threshold * p.shock.unit):
            return State.SHOCK
        if p.high and score > f32(p.high.threshold) and (p.high.std_below is None or std < f32(p.high.std_below)):
            return State.HIGH
        if p.low and score < f32(p.low.threshold):
            return State.LOW
        return State.NEUTRAL

    def settings_of(self, action, score):
        own, top_p = self.own
        temperature = own
        if action.temperature is not None:
            temperature = f32(action.temperature)
            if action.span is not None:
                depth = (f32(self.profile.low.threshold) - score) / f32(action.span)
                temperature = own + (temperature - own) * min(max(depth, f32(0)), f32(1))
            if action.approach == "raise":
                temperature = max(temperature, own)
            elif action.approach == "lower":
                temperature = min(temperature, own)
        return temperature, top_p if action.top_p is None else f32(action.top_p)

    def blow(self, entropy, forced):
        rule = self.profile.fuse
        if not rule or forced or np.isnan(entropy):
            return False
        self.entropies.append(float(entropy))
        return len(self.entropies) >= rule.window and np.std(self.entropies[-rule.window :]) < rule.std_below


# Random profiles. Scores, entropies and settings lie on a coarse grid and limits between its points, so that whether a
# rule fires never hangs on the last bit.
temperatures = st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.85, 1.0, 1.5])
top_ps = st.sampled_from([0.5, 0.9, 1.0])


def actions(span=None):
    return st.fixed_dictionaries(
        {"hold": st.integers(1, 4)},
        optional={
            "temperature": temperatures,
            "approach": st.sampled_from(["set", "raise", "lower"]),
            "top_p": top_ps,
            **({"span": span} if span is not None else {}),
        },
    )


@st.composite
def profiles(draw):
    high = st.fixed_dictionaries(
        {"threshold": st.sampled_from([4.1, 3.6, 4.9]), "action": actions()},
        optional={"std_below": st.sampled_from([0.045, 0.08])},
    )
    low = st.fixed_dictionaries(
        {"threshold": st.sampled_from([2.1, 2.9, 1.6]), "action": actions(st.sampled_from([0.7, 1.1, 3.0]))}
    )
    shock = st.fixed_dictionaries(
        {
            "threshold": st.sampled_from([0.15, 2.1, 5.3]),
            "unit": st.sampled_from([1.0, 1.7]),
            "smoothing": st.sampled_from([1.0, 0.5]),
            "action": actions(),
        }
    )
    fuse = st.fixed_dictionaries({"window": st.integers(2, 6), "std_below": st.sampled_from([0.007, 0.03, 0.06])})
    consistency = st.fixed_dictionaries({"threshold": st.sampled_from([0.65, 0.33])})
    rules = {"high": high, "low": low, "shock": shock, "fuse": fuse, "consistency": consistency}
    chosen = {name: draw(st.none() | rule) for name, rule in rules.items()}
    return parse_profile({"name": "random", **chosen})


def make_requests(seed, rows, length, undefined=0.08):
    """Settings of ``rows`` requests, each ``(rows,)``, and their measurements, each ``(length, rows)``."""
    r = np.random.default_rng(seed)
    settings = SimpleNamespace(
        temperature=r.choice([0.0, 0.3, 0.7, 0.85, 1.0, 1.3], rows).astype(f32),
        top_p=r.choice([0.5, 0.9, 1.0], rows).astype(f32),
        acting=r.random(rows) < 0.8,
    )
    shape = (length, rows)
    score = r.integers(4, 23, shape) / 4
    calm = r.random(rows) < 0.5  # so that not every sequence is one long shock
    score[:, calm] = (
        3.5 + r.integers(-1, 2, shape)[:, calm] / 4 + r.choice([0, 1.5, -1.75], shape, p=[0.8, 0.1, 0.1])[:, calm]
    )
    score[r.random(shape) < undefined] = np.nan
    entropy = 1 + r.integers(0, 3, shape) / r.choice([16, 64], rows)
    entropy[r.random(shape) < undefined] = np.nan
    return settings, SimpleNamespace(
        score=score.astype(f32),
        std=r.choice([0.03, 0.06, 0.1], shape).astype(f32),
        entropy=entropy.astype(f32),
        forced=r.random(shape) < 0.15,
        consistency=r.choice([0.2, 0.5, 0.9, np.nan], shape).astype(f32),
    )


def make_signals(score, std, entropy, forced, consistency=None):
    """Signals whose mean kurtosis is ``score``; each argument ``(B,)``."""

    def tensor(x):
        return torch.from_numpy(np.ascontiguousarray(x))

    kurtosis, spread = (tensor(x).reshape(-1, 1, 1) for x in (score, std))
    nothing = torch.zeros_like(kurtosis)
    return Signals(
        AttentionStatistics(mean=nothing, std=spread, kurtosis=kurtosis, skewness=nothing),
        LogitStatistics(tensor(entropy), tensor(forced)),
        None if consistency is None else tensor(consistency),
    )


def signals_at(measured, token, rows=slice(None)):
    return make_signals(*(x[token, rows] for x in vars(measured).values()))


def start(controller, slots, settings, rows=slice(None)):
    controller.reset(slots, *(torch.from_numpy(x[rows].copy()) for x in vars(settings).values()))


def decide_all(controller, slots, measured, tokens, rows=slice(None)):
    """``(tokens, ROWS, B)``: everything decided, token by token."""
    return np.stack([controller.decide(signals_at(measured, t, rows), slots).packed.numpy() for t in tokens])


class Request:
    """One request under its own controller, driven by hand. Without an entropy given, the fuse stays cold."""

    def __init__(self, profile, temperature=1.0, top_p=0.9, acting=True):
        self.controller, self.slots = Controller(profile, 1), torch.tensor([0])
        self.controller.reset(self.slots, temperature, top_p, acting)
        self.tokens = 0

    def step(self, score=3.0, std=0.05, entropy=None, forced=False, consistency=0.9):
        self.tokens += 1
        entropy = self.tokens % 2 if entropy is None else entropy
        values = (np.array([x], f32) for x in (score, std, entropy))
        signals = make_signals(*values, np.array([forced]), np.array([consistency], f32))
        decided = self.controller.decide(signals, self.slots)
        return SimpleNamespace(
            state=State(int(decided.packed[STATE, 0])),
            temperature=float(decided.temperature),
            top_p=float(decided.top_p),
            stop=bool(decided.stop),
            resample=bool(decided.resample),
            sequence=int(decided.sequence),
            values=decided.packed[:, 0].tolist(),
        )

    def run(self, *scores, **settings):
        return [self.step(score, **settings) for score in scores]
