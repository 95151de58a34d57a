"""Weights come out of records as they went in."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.records import ALIGN_BYTES, Form, PackedWeight, fits_records

FORMS = [Form(4, 8, False), Form(4, 0, True), Form(8, 128, False), Form(8, 16, False), Form(8, 0, True)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("out", "width"), [(32, 32), (96, 160)])
def test_rows_are_scale_times_number_less_zero_and_the_minimum(form: Form, out: int, width: int) -> None:
    generator = torch.Generator().manual_seed(out)
    numbers = torch.randint(0, 1 << form.bits, (out, width), dtype=torch.uint8, generator=generator)
    scales, minima = torch.randn(2, out, width // 32, generator=generator).half()
    expected = (numbers.float() - form.zero).view(out, -1, 32) * scales.float()[..., None]
    if form.has_minimum:
        expected += minima.float()[..., None]
    wanted = torch.tensor([out - 1, 0, 17, 17])

    weight = PackedWeight(form, numbers, scales, minima if form.has_minimum else None)

    assert torch.equal(weight.rows(wanted), expected.view(out, width)[wanted])
    assert weight.records.numel() == form.record_bytes * out * width // 1024
    assert weight.records.data_ptr() % ALIGN_BYTES == 0


def test_only_whole_records_fit() -> None:
    assert fits_records(64, 96)
    assert not fits_records(48, 96)
    assert not fits_records(64, 80)
