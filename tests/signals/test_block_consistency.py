"""Agreement of adjacent blocks against numpy."""

import numpy as np
import pytest
import torch

from surefoot.signals import block_consistency


def make_hidden(layers, rows=5, width=64):
    return np.random.default_rng(0).normal(0.3, 1, (layers, rows, width)).astype(np.float32)


@pytest.mark.parametrize("layers", [2, 3, 12])
def test_equals_numpy(layers):
    x = make_hidden(layers)
    y = x.astype(np.float64)
    unit = y / np.linalg.norm(y, axis=-1, keepdims=True)
    expected = (unit[:-1] * unit[1:]).sum(-1).mean(0)
    np.testing.assert_allclose(block_consistency(torch.from_numpy(x)), expected, rtol=1e-4, atol=1e-6)


def test_does_not_depend_on_the_size_of_the_residual_stream():
    x = torch.from_numpy(make_hidden(6))
    grown = x * torch.logspace(0, 4, 6)[:, None, None]
    torch.testing.assert_close(block_consistency(grown), block_consistency(x))


def test_opposite_blocks_disagree():
    x = torch.from_numpy(make_hidden(1))
    torch.testing.assert_close(block_consistency(torch.cat([x, -x, x])), -torch.ones(5))


def test_equal_blocks_agree_and_by_no_more_than_one():
    x = torch.from_numpy(make_hidden(1, rows=500, width=577)).expand(8, -1, -1)
    agreement = block_consistency(x)
    torch.testing.assert_close(agreement, torch.ones(500))
    assert agreement.max() <= 1


def test_half_precision_is_measured_in_float32():
    x = torch.from_numpy(make_hidden(4)).bfloat16()
    assert block_consistency(x).dtype == torch.float32
    assert torch.equal(block_consistency(x), block_consistency(x.float()))


def test_a_row_equals_the_row_alone():
    x = torch.from_numpy(make_hidden(4))
    for b in range(5):
        torch.testing.assert_close(block_consistency(x)[b : b + 1], block_consistency(x[:, b : b + 1]))
