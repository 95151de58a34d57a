"""Triton bodies on a CPU: Triton's interpreter, switched on before Triton is imported by anything."""

from __future__ import annotations

import os
import sys

assert "triton" not in sys.modules, "Triton was imported before its interpreter could be switched on"
os.environ["TRITON_INTERPRET"] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

_patch = interpreter._patch_lang_tensor


def _patch_for_numpy_2_4(tensor, scope):
    """NumPy 2.4 makes no Python number of an array of one element any more; Triton 3.6 needs that for loop bounds."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patch_for_numpy_2_4

_dot = interpreter.InterpreterBuilder.create_dot


def _dot_of_bf16(self, a, b, *others):
    """The interpreter keeps bf16 and FP8 as bits and would multiply those."""
    return _dot(self, _widened(a), _widened(b), *others)


def _widened(handle):
    if handle.dtype.scalar == tl.float8e4nv:
        wide = torch.from_numpy(handle.data.view(np.uint8)).view(torch.float8_e4m3fn).float()
        return interpreter.TensorHandle(wide.numpy(), tl.float32)
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


interpreter.InterpreterBuilder.create_dot = _dot_of_bf16

_convert = interpreter._convert_float
_ROUNDED = {tl.bfloat16: (torch.bfloat16, np.uint16), tl.float8e4nv: (torch.float8_e4m3fn, np.uint8)}


def _convert_rounding(source, source_dtype, dtype, mode):
    """The interpreter cuts digits off where a card rounds to the nearest."""
    if source_dtype != tl.float32 or dtype not in _ROUNDED:
        return _convert(source, source_dtype, dtype, mode)
    kind, bits = _ROUNDED[dtype]
    wide = torch.from_numpy(np.array(source, dtype=np.float32))
    return wide.to(kind).view(torch.uint8).numpy().view(bits).reshape(np.shape(source))


interpreter._convert_float = _convert_rounding
