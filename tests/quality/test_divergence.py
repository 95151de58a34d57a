import math

import pytest
import torch

from threefold.quality.divergence import compare, compare_with_sketch, sketch

A = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]).log() + 3.0  # logits are known but for a constant
B = torch.tensor([[0.25, 0.5, 0.25], [0.2, 0.2, 0.6]]).log()
TARGETS = torch.tensor([0, 2])
DIVERGENCES = [0.5 * math.log(2) - 0.25 * math.log(2), 0.2 * math.log(0.5) + 0.8 * math.log(4 / 3)]


def test_known_answers():
    found = compare(A, B, TARGETS)
    torch.testing.assert_close(found.surprise_a, -torch.tensor([0.5, 0.8]).log())
    torch.testing.assert_close(found.surprise_b, -torch.tensor([0.25, 0.6]).log())
    torch.testing.assert_close(found.divergence, torch.tensor(DIVERGENCES))
    assert found.agrees.tolist() == [0.0, 1.0]


def test_a_model_does_not_differ_from_itself():
    logits = 5 * torch.randn(40, 1000, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(40)
    for found in (compare(logits, logits, targets), compare_with_sketch(sketch(logits, targets, 8), logits, targets)):
        assert found.divergence.tolist() == [0.0] * 40
        assert found.agrees.tolist() == [1.0] * 40
        assert torch.equal(found.surprise_a, found.surprise_b)


@pytest.mark.parametrize("num_top", [3, 64])
def test_a_sketch_of_everything_is_the_whole(num_top):
    found = compare_with_sketch(sketch(A, TARGETS, num_top), B, TARGETS)
    for part, whole in zip(found, compare(A, B, TARGETS), strict=True):
        torch.testing.assert_close(part, whole)


def test_a_sketch_gives_a_lower_bound():
    generator = torch.Generator().manual_seed(2)
    a = 3 * torch.randn(50, 500, generator=generator)
    b = a + 0.3 * torch.randn(50, 500, generator=generator)
    targets = torch.zeros(50, dtype=torch.int64)
    whole = compare(a, b, targets)
    few, many = (compare_with_sketch(sketch(a, targets, num), b, targets) for num in (4, 200))
    assert (few.divergence <= many.divergence + 1e-6).all()
    assert (many.divergence <= whole.divergence + 1e-6).all()
    assert (many.divergence > 0.5 * whole.divergence).all()
    assert torch.equal(few.agrees, whole.agrees)
    torch.testing.assert_close(few.surprise_b, whole.surprise_b)


def test_equal_tops_are_told_apart_as_the_sampler_does():
    tied = torch.tensor([[1.0, 1.0, 0.0]])
    assert compare_with_sketch(sketch(tied, torch.tensor([0]), 1), tied, torch.tensor([0])).agrees.item() == 1.0
