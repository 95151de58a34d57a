from __future__ import annotations

import numpy as np
import pytest
import torch

from threefold.runner.forward import DeviceRows, staged_batch
from threefold.runner.inputs import build_inputs
from threefold.runner.rows import Growth
from threefold.runner.staging import MAX_GROWN, StagedShape, Staging
from threefold.step import StepPlan

CPU = torch.device("cpu")


@pytest.fixture
def arrays(rows, new_row, plan_row):
    """Two rows of 4 and 2 new tokens; the last token of each is drawn behind."""
    rows.grow(rows.add(new_row(5, tuple(range(10, 20)))), (3, 1, 7))
    rows.grow(rows.add(new_row(6, (1, 2))), (4,))
    return build_inputs(StepPlan([plan_row(5, 6, 4), plan_row(6, 0, 2)]), rows).arrays


@pytest.fixture
def device_rows(rows):
    return DeviceRows(len(rows.lengths), rows.block_tables.shape[1], CPU)


@pytest.mark.parametrize("shape", [StagedShape(6, 2, 2), StagedShape(8, 4, 8), StagedShape(13, 3, 5)])
def test_a_step_arrives_as_it_was_sent_with_padding_behind(arrays, rows, device_rows, shape):
    staging = Staging(16, 4, CPU)
    staging.put(arrays, shape, device_rows.grow)
    batch, keep_rows = staged_batch(staging.views(shape), device_rows, 4, 10)
    assert batch.token_ids.tolist() == [16, 17, 18, 19, 1, 2] + [0] * (shape.num_tokens - 6)
    assert batch.positions.tolist() == [6, 7, 8, 9, 0, 1] + [0] * (shape.num_tokens - 6)
    assert batch.slots.tolist() == [*arrays.slots.tolist(), *[-1] * (shape.num_tokens - 6)]
    assert batch.row_starts.tolist() == [0, 4, 6] + [6] * (shape.num_rows - 2)
    assert batch.context_lens.tolist() == [10, 2] + [0] * (shape.num_rows - 2)
    assert batch.logit_tokens.tolist() == [3, 5] + [0] * (shape.num_logits - 2)
    assert keep_rows.tolist() == [*arrays.keep_rows.tolist(), *[4] * (shape.num_logits - 2)]
    assert batch.block_tables[:2].tolist() == rows.block_tables[arrays.row_ids].tolist()
    assert [str(t.dtype) for t in (batch.row_starts, batch.context_lens, batch.block_tables)] == ["torch.int32"] * 3
    assert {t.dtype for t in (batch.token_ids, batch.positions, batch.slots, batch.logit_tokens)} == {torch.int64}


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 2, 2), (7, 3, 5), (100, 9, 100)])
def test_every_part_is_aligned_alike_whatever_the_shape(sizes):
    shape = StagedShape(*sizes)
    views = Staging(128, 16, CPU).views(shape)
    start = views.wide.data_ptr()
    assert all((part.data_ptr() - start) % 16 == 0 for part in views[1:])
    longs = views.longs(views.wide.long())
    assert all((part.data_ptr() - longs[0].data_ptr()) % 16 == 0 for part in longs)


def test_a_step_in_flight_keeps_its_buffer(arrays, device_rows):
    staging = Staging(16, 4, CPU)
    shape = StagedShape(6, 2, 2)
    staging.put(arrays, shape, device_rows.grow)
    first = staging._host_arrays[staging._turn]
    before = first.copy()
    arrays.token_ids += 1
    staging.put(arrays, shape, device_rows.grow)
    assert np.array_equal(first, before)


def test_padding_alone_is_a_step_without_tokens(device_rows):
    staging = Staging(16, 4, CPU)
    shape = StagedShape(8, 4, 8)
    staging.put_padding(shape)
    batch, keep_rows = staged_batch(staging.views(shape), device_rows, 1, 10)
    assert set(batch.slots.tolist()) == {-1}
    assert batch.row_starts.tolist() == [0] * 5
    assert set(keep_rows.tolist()) == {4}


def test_more_growth_than_there_is_room_goes_up_by_itself(arrays):
    staging = Staging(16, 4, CPU)
    num = MAX_GROWN + 1
    arrays.growth = Growth(list(range(num)), list(range(num)))
    grown = []
    staging.put(arrays, StagedShape(6, 2, 2), lambda places, block_ids: grown.append((places, block_ids)))
    assert [tensor.tolist() for tensor in grown[0]] == [list(range(num))] * 2


@pytest.mark.parametrize("num_grown", [0, 1, 5, 16])
def test_what_rows_were_given_goes_up_with_the_step(arrays, num_grown):
    staging, device_rows = Staging(16, 4, CPU), DeviceRows(4, 16, CPU)
    for turn in range(4):
        device_rows.block_tables.fill_(77)
        places = [3 * place + turn for place in range(num_grown)]
        arrays.growth = Growth(places, [100 * turn + place for place in places])
        staging.put(arrays, StagedShape(6, 2, 2), device_rows.grow)
        tables = device_rows.block_tables.view(-1)
        assert tables[places].tolist() == arrays.growth.block_ids
        assert (tables == 77).sum() == tables.numel() - num_grown


def test_tokens_that_a_step_before_chose_are_put_in(device_rows):
    device_rows.keep(torch.tensor([2, 4, 4]), torch.tensor([77, 1, 2]))
    assert device_rows.resolve(torch.tensor([5, -3, 0])).tolist() == [5, 77, 0]
