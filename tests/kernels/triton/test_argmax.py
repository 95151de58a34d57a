"""Triton's most likely token, interpreted, against its contract: lowest id among equals, NaN above all."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.argmax import most_likely_reference
from threefold.kernels.triton.argmax import PIECE, most_likely_body

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [1, 7, PIECE, PIECE + 1, 3 * PIECE - 5])
def test_body_equals_reference(dtype: torch.dtype, vocab: int) -> None:
    torch.manual_seed(0)
    logits = (3 * torch.randn(4, vocab)).to(dtype)  # in bf16 many are equal

    tokens, values = most_likely_body(logits)
    expected_tokens, expected_values = most_likely_reference(logits)

    assert tokens.tolist() == expected_tokens.tolist()
    assert values.tolist() == expected_values.tolist()
    assert (tokens.dtype, values.dtype) == (torch.int64, torch.float32)


@pytest.mark.parametrize(
    ("row", "token", "value"),
    [
        ([0.0, 2.0, 2.0, 1.0], 1, 2.0),
        ([-0.0, 0.0, -1.0, 0.0], 0, 0.0),
        ([-INF, -INF, -3.0, -INF], 2, -3.0),
        ([-INF, -INF, -INF, -INF], 0, -INF),
        ([1.0, INF, NAN, NAN], 2, NAN),
        ([-NAN, INF, 0.0, 0.0], 0, NAN),
    ],
)
@pytest.mark.parametrize("body", [most_likely_body, most_likely_reference])
def test_ties_infinities_and_nan(row: list[float], token: int, value: float, body) -> None:
    tokens, values = body(torch.tensor([row]))

    assert [token] == tokens.tolist()
    torch.testing.assert_close(values, torch.tensor([value]), equal_nan=True)


def test_rows_of_a_wider_tensor_and_no_rows() -> None:
    wide = torch.randn(3, 50)

    assert wide[:, :20].argmax(-1).tolist() == most_likely_body(wide[:, :20])[0].tolist()
    assert [] == most_likely_body(wide[:0])[0].tolist()
