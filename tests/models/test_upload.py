"""Staging without a card: every byte goes through the buffers in turn, each once the transfer before it is done."""

from __future__ import annotations

import pytest
import torch

from threefold.models import upload
from threefold.models.upload import NUM_BUFFERS, Stage


class CountedEvent:
    """An event that knows whether its last recording was waited for."""

    def __init__(self, device: torch.device) -> None:
        self.num_recorded = self.num_waited = 0

    def record(self) -> None:
        assert self.num_waited == self.num_recorded + 1, "a buffer was filled before what it held had left"
        self.num_recorded += 1

    def synchronize(self) -> None:
        self.num_waited += 1


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    plain = torch.empty
    monkeypatch.setattr(upload.torch, "Event", CountedEvent)
    monkeypatch.setattr(upload.torch, "empty", lambda *shape, pin_memory=False, **options: plain(*shape, **options))
    return Stage(torch.device("cpu"), buffer_bytes=64)


@pytest.mark.parametrize("shape", [(), (0,), (16,), (17,), (5, 7), (64 * NUM_BUFFERS,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_arrives_is_what_was_sent(stage: Stage, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for _ in range(3):
        tensor = torch.randn(shape)
        arrived = stage.upload(tensor, dtype)
        assert torch.equal(tensor.to(dtype), arrived)
        assert arrived.dtype == dtype


def test_what_was_sent_may_change_at_once(stage: Stage) -> None:
    tensor = torch.arange(100.0)
    arrived = stage.upload(tensor, torch.float32)
    tensor.zero_()
    assert torch.arange(100.0).tolist() == arrived.tolist()
