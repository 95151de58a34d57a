"""How steps get to the device and their tokens back, put together for a CPU and for a card.

Knows nothing about plans or sampling parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from threefold.layers.batch import Batch
from threefold.runner.forward import DeviceRows, Forward, HostForward, StagedForward
from threefold.runner.graphs import Capture, GraphForward, GraphLimits, GraphReport, make_cuda_mark
from threefold.runner.inputs import StepArrays
from threefold.runner.readback import HostReadback, Mark, Readback, StreamReadback
from threefold.runner.rows import Growth, Rows
from threefold.runner.runner import ModelRunner
from threefold.runner.staging import Staging
from threefold.sample.sampler import most_likely


@dataclass(frozen=True, slots=True)
class StepPath:
    """All that lies between a step's arrays and its tokens on the host."""

    forward: Forward
    device_rows: DeviceRows
    readback: Readback


def host_path(runner: ModelRunner, rows: Rows) -> StepPath:
    """The path of a CPU: nothing is copied, and a step is done when it is launched."""
    device_rows = DeviceRows(len(rows.lengths), 0, torch.device("cpu"))
    return StepPath(HostForward(runner, rows, device_rows), device_rows, HostReadback())


def card_path(
    runner: ModelRunner,
    limits: GraphLimits,
    *,
    max_tokens: int,
    max_blocks: int,
    device: torch.device,
    capture: Capture,
    make_mark: Callable[[], Mark] = make_cuda_mark,
) -> tuple[StepPath, GraphReport]:
    """The path of a card, its graphs captured. It belongs to no rows: workers may use it one after another.

    Args:
        runner: the model.
        limits: which graphs to capture.
        max_tokens: most tokens a step.
        max_blocks: width of the rows' block tables.
        device: the card.
        capture: captures graphs.
        make_mark: gives marks for times.
    """
    room = max(max_tokens, limits.sizes[-1])
    device_rows = DeviceRows(limits.max_rows, max_blocks, device, limits.max_draft)
    staging = Staging(room, limits.max_rows, device)
    eager = StagedForward(runner, staging, device_rows, limits.row_sizes)
    forward = GraphForward(runner, staging, device_rows, eager, limits)
    report = forward.capture(capture)
    readback = StreamReadback(room, device, make_mark)
    return StepPath(forward, device_rows, readback), report


class BatchSteps:
    """Runs made-up batches as the engine runs its steps, graphs and upload included: what calibration times.

    Args:
        path: the engine's.
    """

    def __init__(self, path: StepPath) -> None:
        self._path = path
        self._batch: Batch | None = None
        self._arrays: StepArrays | None = None

    @torch.inference_mode()
    def __call__(self, batch: Batch) -> object:
        """Launch a batch; a batch that comes again is taken apart once only."""
        if self._arrays is None or batch is not self._batch:
            self._batch = batch
            self._arrays = _arrays_of(batch, self._path.device_rows)
        arrays = self._arrays
        found = self._path.forward.run(arrays, len(arrays.logit_tokens))
        self._arrays = replace(arrays, growth=Growth([], []))
        assert found.logits is not None
        return found.likely or most_likely(found.logits)


def _arrays_of(batch: Batch, device_rows: DeviceRows) -> StepArrays:
    """A batch as arrays, its row i in row i."""
    max_rows, max_blocks = device_rows.block_tables.shape
    tables = batch.block_tables.cpu()
    row_ids = torch.arange(batch.num_rows)
    places = row_ids.unsqueeze(1) * max_blocks + torch.arange(tables.shape[1])
    return StepArrays(
        token_ids=batch.token_ids.cpu().numpy(),
        positions=batch.positions.cpu().numpy(),
        slots=batch.slots.cpu().numpy(),
        row_ids=row_ids.numpy(),
        row_starts=batch.row_starts.cpu().long().numpy(),
        context_lens=batch.context_lens.cpu().long().numpy(),
        logit_tokens=batch.logit_tokens.cpu().numpy(),
        keep_rows=torch.full_like(batch.logit_tokens, max_rows).cpu().numpy(),
        max_new=batch.max_new,
        max_context=batch.max_context,
        has_unknown=False,
        growth=Growth(places.reshape(-1).tolist(), tables.reshape(-1).tolist()),
    )
