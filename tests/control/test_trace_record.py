"""The trace: tokens, summary, reasons in words, and the file."""

import math
from dataclasses import asdict

import numpy as np
import pyarrow.parquet as pq
import pytest
from controller_reference import Request

from surefoot.control import Trace, load_profile, parse_profile
from surefoot.control.trace import quantiles
from surefoot.errors import InputError

ARTICLE = load_profile("article")
NAN = math.nan


def trace_of(*steps, profile=ARTICLE, **settings):
    """A trace of tokens whose measurements are ``steps``, each a dict for `Request.step`."""
    trace, request = Trace(profile), Request(profile, **settings)
    for i, step in enumerate(steps):
        trace.append(i, f"token {i}", request.step(**step).values, latency_ms=1.5)
    return trace


def scores(*values):
    return [{"score": value} for value in values]


def reasons(trace):
    return [(t.state, t.reason) for t in trace.tokens]


def test_a_token_keeps_what_was_measured_and_decided():
    trace = Trace(ARTICLE)
    values = Request(ARTICLE, 0.7, 0.9).step(4.3, std=0.07, entropy=0.5, consistency=0.6).values
    token = trace.append(42, "sure", values, latency_ms=2.25)
    assert trace.tokens == [token]
    assert asdict(token) == {
        "id": 42, "text": "sure", "kurtosis": 4.3, "std": 0.07, "entropy": 0.5, "determinacy": 4.3, "jerk": None,
        "consistency": 0.6, "state": "HIGH", "temperature": 0.3, "top_p": 1.0, "sequence": 1, "resampled": True,
        "reason": "determinacy 4.3 > 4.2 and std 0.07 < 0.08; blocks agree 0.6 < 0.65, drawn again", "latency_ms": 2.25,
    }  # fmt: skip


def test_what_is_undefined_is_none():
    token = trace_of({"score": NAN, "std": NAN, "entropy": NAN, "consistency": NAN}).tokens[0]
    assert (token.kurtosis, token.std, token.entropy, token.determinacy, token.jerk, token.consistency) == (None,) * 6


def test_a_greedy_token_has_temperature_0():
    assert trace_of({"score": 4.3}, temperature=0.0).tokens[0].temperature == 0


def test_the_reason_of_high_names_score_spread_and_limits():
    assert reasons(trace_of({"score": 4.3, "std": 0.07})) == [("HIGH", "determinacy 4.3 > 4.2 and std 0.07 < 0.08")]


def test_the_reason_of_high_names_no_spread_without_a_limit():
    profile = parse_profile({"name": "p", "high": {"threshold": 4.2}})
    assert reasons(trace_of({"score": 4.3}, profile=profile)) == [("HIGH", "determinacy 4.3 > 4.2")]


def test_the_reason_of_a_held_state_says_held():
    assert reasons(trace_of(*scores(4.3, 4.1)))[1] == ("HIGH", "HIGH held")


def test_the_reason_of_low_names_score_and_limit():
    assert reasons(trace_of(*scores(2.0))) == [("LOW", "determinacy 2 < 2.1")]


def test_the_reason_of_shock_names_the_jerk_in_units():
    profile = parse_profile({"name": "p", "shock": {"threshold": 0.15, "unit": 2.0}})
    assert reasons(trace_of(*scores(3, 3, 3, 4), profile=profile))[-1] == ("SHOCK", "jerk 0.5 beyond 0.15")


def test_the_reason_of_the_fuse_names_window_and_spread():
    steps = [{"entropy": 1}] * 5
    expected = ("FUSE", "entropy of the last 5 tokens spreads less than 0.03 nats")
    assert reasons(trace_of(*steps))[-1] == expected


def test_the_fuse_gives_its_own_reason_while_another_state_is_held():
    steps = [{"entropy": 1}] * 3 + [{"entropy": 1, "score": 4.3}, {"entropy": 1, "score": NAN}]
    assert reasons(trace_of(*steps))[-1][1].startswith("entropy of the last 5 tokens")


def test_neutral_has_no_reason():
    assert reasons(trace_of(*scores(3.0))) == [("NEUTRAL", "")]


def test_the_reason_of_an_undefined_score_is_too_few_keys():
    assert reasons(trace_of(*scores(NAN))) == [
        ("NEUTRAL", "undefined: fewer than 8 visible keys, or a head without spread")
    ]


def test_the_reason_of_a_second_draw_stands_alone_in_neutral():
    trace = trace_of({"score": 3.0, "consistency": 0.5})
    assert reasons(trace) == [("NEUTRAL", "blocks agree 0.5 < 0.65, drawn again")]


def test_the_summary_counts_states_overrides_and_second_draws():
    trace = trace_of(*scores(4.3, 4.19, 4.08, 3.97, NAN), {"score": 2.0, "consistency": 0.1}, temperature=0.7)
    summary = trace.summary()
    assert summary["tokens"] == 6
    assert summary["states"] == {"NEUTRAL": 2, "LOW": 1, "HIGH": 3, "SHOCK": 0, "FUSE": 0}
    assert summary["overrides"] == 4
    assert summary["resampled"] == 1
    assert summary["kurtosis"] == summary["determinacy"] == quantiles([4.3, 4.19, 4.08, 3.97, None, 2.0])


def test_the_summary_of_nothing_has_no_quantiles():
    summary = Trace(ARTICLE).summary()
    assert summary["tokens"] == summary["overrides"] == 0
    assert summary["kurtosis"] is summary["entropy"] is None


@pytest.mark.parametrize("n", [1, 2, 3, 20, 101])
def test_quantiles_equal_numpy(n):
    values = np.random.default_rng(n).normal(size=n)
    expected = np.quantile(values, [0.05, 0.5, 0.95])
    np.testing.assert_allclose(list(quantiles([None, *values.tolist(), None]).values()), expected)


def test_quantiles_of_nothing_defined_are_none():
    assert quantiles([]) is quantiles([None, None]) is None


def test_the_file_gives_back_every_token(tmp_path):
    trace = trace_of({"score": NAN, "entropy": NAN}, *scores(4.3, 2.0, 3.0), {"consistency": 0.1})
    trace.append(9, "语义 🦶\n", Request(ARTICLE).step().values)
    trace.write(tmp_path / "trace.parquet")
    assert pq.read_table(tmp_path / "trace.parquet").to_pylist() == trace.rows()


def test_undefined_numbers_are_null_in_the_file(tmp_path):
    trace_of({"score": NAN, "entropy": NAN}).write(tmp_path / "trace.parquet")
    table = pq.read_table(tmp_path / "trace.parquet")
    assert [table[name].null_count for name in ("kurtosis", "determinacy", "entropy", "jerk")] == [1] * 4


def test_the_file_carries_profile_and_schema_version(tmp_path):
    trace_of(*scores(3.0)).write(tmp_path / "trace.parquet")
    metadata = pq.read_schema(tmp_path / "trace.parquet").metadata
    assert metadata[b"surefoot.trace"] == b"1"
    assert metadata[b"surefoot.profile"].decode() == ARTICLE.dump()


def test_an_empty_trace_is_written_with_its_columns(tmp_path):
    trace_of(*scores(3.0)).write(tmp_path / "one.parquet")
    Trace(ARTICLE).write(tmp_path / "none.parquet")
    assert pq.read_table(tmp_path / "none.parquet").num_rows == 0
    assert pq.read_schema(tmp_path / "none.parquet").equals(pq.read_schema(tmp_path / "one.parquet"))


@pytest.mark.parametrize("where", ["missing/trace.parquet", "file/trace.parquet", "folder"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, where):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot write the trace to .*" + where):
        trace_of(*scores(3.0)).write(tmp_path / where)
