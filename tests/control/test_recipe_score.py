"""The determinacy score against numpy."""

import numpy as np
import pytest
import torch

from surefoot.control import Recipe
from surefoot.signals import STATISTICS, AttentionStatistics

B, L, H = 4, 2, 3
LOGARITHMIC = {"kurtosis", "entropy", "previous", "sink"}
CPU = torch.device("cpu")


def make_statistics():
    r = np.random.default_rng(0)
    values = {name: r.uniform(0.001, 1, (B, L, H)) for name in STATISTICS}
    values["kurtosis"] = r.uniform(1, 12, (B, L, H))
    values["mean"] = r.uniform(-1, 1, (B, L, H))
    values["sink"][0] = 0.0  # its logarithm is taken of 1e-4
    return {name: x.astype(np.float32) for name, x in values.items()}


def make_recipe(statistics, clip=5.0):
    r = np.random.default_rng(1)
    size = len(statistics) * L * H
    numbers = {"weights": r.normal(size=size), "center": r.normal(size=size), "scale": r.uniform(0.2, 2, size)}
    return Recipe(
        kind="linear", statistics=statistics, intercept=2.5, clip=clip, **{k: tuple(v) for k, v in numbers.items()}
    )


def score(recipe, values):
    attention = AttentionStatistics(**{name: torch.from_numpy(x) for name, x in values.items()})
    return recipe.compile(CPU)(attention, attention.kurtosis.flatten(1).mean(1)).numpy()


def numpy_score(recipe, values):
    columns = [
        np.log(np.maximum(x, 1e-4)) if name in LOGARITHMIC else x
        for name, x in ((name, values[name].astype(np.float64).reshape(B, -1)) for name in recipe.statistics)
    ]
    z = (np.concatenate(columns, 1) - recipe.center) / recipe.scale
    return -(np.clip(z, -recipe.clip, recipe.clip) @ recipe.weights + recipe.intercept)


@pytest.mark.parametrize("statistics", [("kurtosis",), ("kurtosis", "mean", "std"), ("sink", "kurtosis"), STATISTICS])
@pytest.mark.parametrize("clip", [0.5, 5.0])
def test_linear_score_equals_numpy(statistics, clip):
    recipe, values = make_recipe(statistics, clip), make_statistics()
    np.testing.assert_allclose(score(recipe, values), numpy_score(recipe, values), rtol=1e-4, atol=1e-4)


def test_mean_kurtosis_is_the_mean_over_layers_and_heads():
    values = make_statistics()
    expected = values["kurtosis"].mean((1, 2))
    np.testing.assert_allclose(score(Recipe(kind="mean_kurtosis"), values), expected, rtol=1e-6)


def test_one_odd_head_moves_the_score_by_its_clip_and_no_more():
    recipe = Recipe(
        kind="linear", statistics=("mean",), weights=(0.5,) * 6, center=(0.0,) * 6, scale=(2.0,) * 6, clip=3.0
    )
    values = make_statistics() | {"mean": np.zeros((B, L, H), np.float32)}
    values["mean"][1, 0, 0], values["mean"][2, 0, 0], values["mean"][3, 0, 0] = 1e6, -1e6, 2.0
    np.testing.assert_allclose(score(recipe, values), [0, -1.5, 1.5, -0.5], atol=1e-6)


def test_an_undefined_statistic_leaves_the_score_of_its_row_undefined():
    values = make_statistics()
    values["kurtosis"][2, 1, 1] = np.nan
    assert np.isnan(score(make_recipe(("kurtosis", "mean")), values)).tolist() == [False, False, True, False]


def test_scoring_leaves_the_statistics_as_they_were():
    values = make_statistics()
    before = {name: x.copy() for name, x in values.items()}
    score(make_recipe(STATISTICS), values)
    for name in STATISTICS:
        np.testing.assert_array_equal(values[name], before[name])


def test_a_wrong_number_of_features_is_refused_with_both_numbers():
    values = {name: x[:, :1] for name, x in make_statistics().items()}
    with pytest.raises(ValueError, match=r"6 weights.* 3 features"):
        score(make_recipe(("kurtosis",)), values)


def test_a_statistic_that_was_not_measured_is_named():
    values = make_statistics()
    del values["entropy"]
    with pytest.raises(ValueError, match="'entropy' was not measured"):
        score(make_recipe(("kurtosis", "entropy")), values)
