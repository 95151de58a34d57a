"""One kind of a layer's stored tensors: all parts fused along the outputs, this rank's share of each.

Knows nothing about products. With a plain weight this is the layer's weight; a quantised layer has several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from threefold.errors import ModelLoadError
from threefold.layers.quant import StoredTensor
from threefold.parallel import Group

Allocate = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]


class FusedTensor:
    """Memory for one kind of tensor of all parts, taken when the first of them comes.

    Args:
        kind: as the checkpoint calls it, for messages.
        form: how a part's tensor lies.
        parts: this rank's outputs of each part.
        inputs: this rank's inputs.
        group: the ranks.
        is_by_outputs: every rank has some of the outputs; else some of the inputs.
    """

    def __init__(
        self, kind: str, form: StoredTensor, parts: Mapping[str, int], inputs: int, group: Group, *, is_by_outputs: bool
    ) -> None:
        self._kind = kind
        self._form = form
        self._parts = dict(parts)
        self._inputs = inputs
        self._group = group
        self._is_by_outputs = is_by_outputs
        self._starts: dict[str, int] = {}
        self._num_fused = 0  # elements along out_dim, or parts where there is none
        for name, outputs in parts.items():
            self._starts[name] = self._num_fused
            self._num_fused += 1 if form.out_dim is None else form.num_outputs(outputs)
        self.tensor: torch.Tensor | None = None

    def keep(self, part: str, tensor: torch.Tensor, allocate: Allocate, dtype: torch.dtype) -> None:
        """Take the whole model's tensor of a part; this rank keeps its share.

        Args:
            part: which.
            tensor: as the checkpoint has it.
            allocate: makes the memory for all parts, when there is none yet.
            dtype: the model's.

        Raises:
            ModelLoadError: a wrong shape, or a share that cuts through a packed element or a block.
        """
        whole = self._shape(part, times=self._group.size)
        if not self._form.allows(tuple(tensor.shape), whole):
            raise ModelLoadError(f"{part}.{self._kind} has shape {list(tensor.shape)}, the model needs {list(whole)}")
        self._check_whole_elements(part)
        if self.tensor is None:
            self.tensor = allocate(self._fused_shape(part), self._form.dtype or dtype)
        self._target(part).copy_(self._own(part, tensor.reshape(whole)))

    def _shape(self, part: str, times: int = 1) -> tuple[int, ...]:
        """Of a part's tensor for this rank; of the whole model's with times = the number of ranks."""
        outputs = self._parts[part] * (times if self._is_by_outputs else 1)
        return self._form.shape(outputs, self._inputs * (1 if self._is_by_outputs else times))

    def _fused_shape(self, part: str) -> tuple[int, ...]:
        shape, dim = self._shape(part), self._form.out_dim
        if self._form.is_one_a_part:
            return (self._num_fused,)
        return (self._num_fused, *shape) if dim is None else (*shape[:dim], self._num_fused, *shape[dim + 1 :])

    def _target(self, part: str) -> torch.Tensor:
        assert self.tensor is not None, "memory is taken before it is filled"
        start, dim = self._starts[part], self._form.out_dim
        if dim is None:
            return self.tensor[start]
        return self.tensor.narrow(dim, start, self._form.num_outputs(self._parts[part]))

    def _own(self, part: str, whole: torch.Tensor) -> torch.Tensor:
        """This rank's share."""
        form = self._form
        dim = form.out_dim if self._is_by_outputs else form.in_dim
        if dim is None or form.is_one_a_part or self._group.size == 1:
            return whole
        num_own = self._shape(part)[dim]
        return whole.narrow(dim, self._group.rank * num_own, num_own)

    def _check_whole_elements(self, part: str) -> None:
        """Shares and all parts but the last must end where an element ends."""
        form, is_last = self._form, part == next(reversed(self._parts))
        is_shared, outputs = self._group.size > 1, self._parts[part]
        must_be_whole = (is_shared and self._is_by_outputs) or not is_last
        if form.out_dim is not None and must_be_whole and outputs % form.outputs_each:
            raise self._cut(part, outputs, "outputs", form.outputs_each)
        if form.in_dim is not None and is_shared and not self._is_by_outputs and self._inputs % form.inputs_each:
            raise self._cut(part, self._inputs, "inputs", form.inputs_each)

    def _cut(self, part: str, num: int, what: str, each: int) -> ModelLoadError:
        ranks = f" on each of {self._group.size} ranks" if self._group.size > 1 else ""
        return ModelLoadError(
            f"{part}.{self._kind} is stored for {each} {what} at a time, of which {num} {what}{ranks} are no multiple"
            + ("; take fewer ranks" if ranks else "; use the unquantised model")
        )
