import math

import pytest
import torch

from threefold.quality.documents import Piece
from threefold.quality.side import load_side, make_batch


def test_pieces_are_rows_in_blocks_of_their_own():
    batch = make_batch([Piece([5, 6, 7, 8, 9], 1), Piece([1, 2], 1), Piece([3, 4, 5], 2)], 4, torch.device("cpu"))
    assert batch.token_ids.tolist() == [5, 6, 7, 8, 9, 1, 2, 3, 4, 5]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 0, 1, 2]
    assert batch.slots.tolist() == [0, 1, 2, 3, 4, 8, 9, 12, 13, 14]
    assert batch.row_starts.tolist() == [0, 5, 7, 10]
    assert batch.context_lens.tolist() == [5, 2, 3]
    assert batch.block_tables[:, 0].tolist() == [0, 2, 3]
    assert batch.block_tables[0, 1] == 1
    assert batch.logit_tokens.tolist() == [0, 1, 2, 3, 5, 8]
    assert (batch.max_new, batch.max_context) == (5, 5)


def test_it_predicts_what_transformers_predicts(make_model, config_of):
    transformers = pytest.importorskip("transformers")
    folder = make_model()
    oracle = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    pieces = [Piece([7, 8, 9, 10, 11], 1), Piece([40, 41, 42], 2), Piece(list(range(100, 230)), 1)]
    side = load_side(config_of(folder), 138, 130, 3)
    chunks = list(side.read(pieces))
    expected = []
    for piece in pieces:
        with torch.inference_mode():
            logits = oracle(torch.tensor([piece.token_ids])).logits[0].float()
        expected.append(logits[piece.first - 1 : -1])
    torch.testing.assert_close(torch.cat([one.logits for one in chunks]), torch.cat(expected), rtol=1e-3, atol=1e-3)
    wanted = [token for piece in pieces for token in piece.token_ids[piece.first :]]
    assert torch.cat([one.targets for one in chunks]).tolist() == wanted
    assert max(len(one.logits) for one in chunks) <= 128


def test_a_head_that_knows_nothing_has_the_vocabulary_as_its_perplexity(make_model, config_of):
    side = load_side(config_of(make_model(spread=0.0)), 16, 16, 1)
    (chunk,) = side.read([Piece(list(range(16)), 1)])
    surprise = torch.nn.functional.cross_entropy(chunk.logits, chunk.targets)
    assert math.exp(surprise) == pytest.approx(257, rel=1e-5)
