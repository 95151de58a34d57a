"""Products with packed 4-bit weights on a card against float32: every body, eager and in a graph."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.int4 import Int4Weight, dequantize, int4_product, int4_product_reference, pack

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")]
CARD = torch.device("cuda")
BOUNDS = {torch.bfloat16: 8e-3, torch.float16: 2e-3}


def random_weight(num_outputs: int, num_inputs: int, group_size: int) -> Int4Weight:
    torch.manual_seed(num_outputs + num_inputs)
    groups = num_inputs // group_size
    return Int4Weight(
        torch.randint(0, 16, (num_outputs, num_inputs), dtype=torch.uint8, device=CARD),
        ((torch.rand(num_outputs, groups, device=CARD) + 0.5) / 5 / num_inputs**0.5).half(),
        torch.randint(0, 17, (num_outputs, groups), dtype=torch.uint8, device=CARD),
        group_size,
    )


MIXED, PLAIN, HALF = (torch.bfloat16, True, True), (torch.bfloat16, False, False), (torch.float16, True, False)
"""dtype, bias, gated"""


@pytest.mark.parametrize(
    ("kind", "num_outputs", "num_inputs", "group_size", "num_tokens"),
    [  # few enough that their bodies compile within half a minute
        (MIXED, 1024, 12288, 128, 1),
        (MIXED, 1024, 12288, 128, 20),
        (MIXED, 1024, 12288, 128, 300),  # splits
        (MIXED, 1024, 12288, 128, 3000),  # dequantised
        (PLAIN, 512, 256, 128, 200),  # one chunk, so nothing to split
        (PLAIN, 5000, 576, 64, 9),
        (PLAIN, 5000, 576, 64, 50),  # tiles that are not full, chunks that are not
        (PLAIN, 6000, 1152, 64, 800),  # tiles of one program's in turn, the last ones split
        (HALF, 48, 1504, 32, 40),
        (HALF, 48, 1504, 32, 100),
        (HALF, 100, 1536, 1536, 100),  # results that do not lie in lines
        (HALF, 104, 1152, 96, 100),  # groups that begin within chunks
    ],
)
def test_product(
    kind: tuple[torch.dtype, bool, bool], num_outputs: int, num_inputs: int, group_size: int, num_tokens: int
) -> None:
    dtype, has_bias, is_gated = kind
    weight = random_weight(num_outputs, num_inputs, group_size)
    bias = torch.randn(num_outputs, device=CARD).to(dtype) if has_bias else None
    x = torch.randn(num_tokens, num_inputs, device=CARD).to(dtype)
    right = int4_product_reference(x, weight, bias, is_gated=is_gated)
    torch.full((4, *right.shape), torch.nan, device=CARD)  # freed at once: what no program writes would be these

    got = int4_product(weight, bias, is_gated=is_gated, dtype=dtype)(x)

    assert got.shape == right.shape
    assert ((got.float() - right).norm() / right.norm()).item() < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", list(BOUNDS))
def test_pieces_are_the_weight(dtype: torch.dtype) -> None:
    from threefold.kernels.triton.int4_dequantize import dequantize_piece

    weight = random_weight(512, 1024, 128)
    piece = torch.empty((200, 1024), dtype=dtype, device=CARD)

    dequantize_piece(pack(weight, dtype), 100, piece)

    torch.testing.assert_close(piece.float(), dequantize(weight)[100:300], rtol=8e-3, atol=1e-6)


@pytest.mark.parametrize("num_tokens", [1, 64, 256])
def test_a_graph_gives_the_same_and_a_token_has_one_result_whoever_is_beside_it(num_tokens: int) -> None:
    multiply = int4_product(random_weight(4096, 4096, 128), None, is_gated=True, dtype=torch.bfloat16)
    x = torch.randn(num_tokens, 4096, device=CARD, dtype=torch.bfloat16)
    eager = multiply(x)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = multiply(x)
    for _ in range(3):
        graph.replay()

    assert torch.equal(captured, eager)
    x[1:] = torch.randn_like(x)[1:]
    graph.replay()
    assert torch.equal(captured[0], eager[0])


@pytest.mark.parametrize("num_outputs", [1024, 8192])
def test_few_tokens_are_summed_in_one_order(num_outputs: int) -> None:
    from threefold.kernels.triton.int4_tables import MAX_FEW_TOKENS

    multiply = int4_product(random_weight(num_outputs, 4096, 128), None, dtype=torch.bfloat16)
    x = torch.randn(MAX_FEW_TOKENS, 4096, device=CARD, dtype=torch.bfloat16)
    alone = multiply(x[:1])

    assert all(torch.equal(multiply(x[:num])[:1], alone) for num in (2, 9, MAX_FEW_TOKENS))
