"""Every kind of step once, so that what steps need to have compiled is known.

Knows nothing about compiling. Nothing is kept, and no result is looked at: bodies need not do anything meanwhile, and
what they leave undone is zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from threefold.layers.attention import KVCache
from threefold.runner.behind import GraphBehind
from threefold.runner.calibrate import CalibrationLimits, made_up_batch, warm_prompts
from threefold.runner.device import Device
from threefold.runner.forward import DeviceRows
from threefold.runner.graphs import GraphLimits, make_cuda_mark
from threefold.runner.path import BatchSteps, card_path
from threefold.runner.peak import TRIAL_POSITIONS
from threefold.runner.readback import Mark
from threefold.runner.rounds import GraphRounds
from threefold.runner.runner import Model, ModelRunner
from threefold.sample.draw import draw
from threefold.sample.native import Filters


class _Once:
    """In place of graphs: the work is done when it would be recorded, and never again."""

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        return lambda: None

    def end(self) -> int:
        return 0


class _Zeros(TorchFunctionMode):
    """Fresh memory is zeros: what a body did not write may be the index of something, and there is always a first."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        return found.zero_() if func in _FRESH else found


_FRESH = (torch.empty, torch.empty_like, torch.Tensor.new_empty)


@torch.inference_mode()
def rehearse(
    model: Model,
    kv: list[KVCache],
    device: Device,
    graphs: GraphLimits,
    steps: CalibrationLimits,
    *,
    max_blocks: int,
    is_draft: bool = False,
    make_mark: Callable[[], Mark] = make_cuda_mark,
) -> None:
    """Run the steps of all captured graphs, prompts of all lengths, and draws.

    Args:
        model: with any weights.
        kv: a pool of steps.num_blocks blocks; what lies in it is overwritten.
        device: a card.
        graphs: which graphs the engine captures.
        steps: the shapes that it can meet.
        max_blocks: width of its rows' block tables.
        is_draft: the model drafts for another: it also feeds itself, behind the other's steps.
        make_mark: gives marks for times, which nobody reads.
    """
    with _Zeros():
        path, _ = card_path(
            ModelRunner(model, kv),
            graphs,
            max_tokens=steps.max_num_batched_tokens,
            max_blocks=max_blocks,
            device=device.torch_device,
            capture=_Once(),
            make_mark=make_mark,
        )
        warm_prompts(BatchSteps(path), device, steps)
        for num_rows in (1, min(TRIAL_POSITIONS, steps.max_num_batched_tokens)):
            _rehearse_draw(model, model.forward(made_up_batch(num_rows, 1, 1, steps, device.torch_device), kv))
        if is_draft:
            _rehearse_rounds(ModelRunner(model, kv), path.device_rows, graphs, steps.block_size, make_mark)


def _rehearse_draw(model: Model, hidden: torch.Tensor) -> None:
    half = np.full(len(hidden), 0.5, dtype=np.float32)
    filters = Filters(np.ones(len(hidden), dtype=np.int64), half, half)
    draw(model.logits(hidden), half, filters, half.astype(np.float64))


def _rehearse_rounds(
    runner: ModelRunner, device_rows: DeviceRows, graphs: GraphLimits, block_size: int, make_mark: Callable[[], Mark]
) -> None:
    most = graphs.max_draft
    rounds = GraphRounds(runner, device_rows, graphs, block_size=block_size, max_rounds=most)
    behind = GraphBehind(rounds, device_rows, vocab_size=graphs.vocab_size, max_draft=most, make_mark=make_mark)
    for one in (rounds, behind):
        one.capture(_Once())
