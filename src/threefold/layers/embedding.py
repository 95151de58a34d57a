"""Token embedding and output head, both divided by vocabulary among the ranks.

Either is a table [vocabulary, hidden_size], plain, packed or in eight bits; a tied head multiplies with the embedding's
own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from threefold.errors import ModelLoadError
from threefold.kernels.linear import Product, product
from threefold.layers.fused import FusedTensor
from threefold.layers.quant import Plain, Table, TableScheme
from threefold.parallel import Group, shard


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a model's embedding and its head have in common."""

    size: int
    """Tokens."""
    hidden_size: int
    dtype: torch.dtype
    """Of rows and of hidden states."""
    device: torch.device
    group: Group
    """Ranks that divide it."""

    @property
    def num_own(self) -> int:
        """Tokens of one rank."""
        return shard(self.size, self.group, "vocabulary")


class PlainTable:
    """In the model's own type."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    def rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Rows as they are."""
        return F.embedding(token_ids, self._weight)

    def product(self) -> Product:
        """kernels/linear.py's."""
        return product(self._weight, None)


class _Loading:
    """A table's tensors, which come one at a time."""

    def __init__(self, vocabulary: Vocabulary, scheme: TableScheme | None) -> None:
        own = {"embedding": vocabulary.num_own}
        self._dtype = vocabulary.dtype
        self._device = vocabulary.device
        stored = (Plain() if scheme is None else scheme).stored
        self._tensors = {
            kind: FusedTensor(kind, form, own, vocabulary.hidden_size, vocabulary.group, is_by_outputs=True)
            for kind, form in stored.items()
        }

    def load(self, kind: str, tensor: torch.Tensor) -> Mapping[str, torch.Tensor] | None:
        """Take the whole model's tensor; this rank's share of all, once they have come.

        Raises:
            ModelLoadError: a wrong shape, or a tensor that a table of this kind does not have.
        """
        if kind not in self._tensors:
            raise ModelLoadError(f"an embedding kept so has {', '.join(self._tensors)} and no {kind}")
        self._tensors[kind].keep("embedding", tensor, self._allocate, self._dtype)
        tensors = {name: one.tensor for name, one in self._tensors.items() if one.tensor is not None}
        return tensors if len(tensors) == len(self._tensors) else None

    def _allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self._device)


def _table(tensors: Mapping[str, torch.Tensor], scheme: TableScheme | None, dtype: torch.dtype) -> Table:
    return PlainTable(tensors["weight"]) if scheme is None else scheme.table(tensors, dtype)


class VocabParallelEmbedding:
    """Rows of the embedding; a rank knows some tokens, the others come to it as zeros and are summed in."""

    def __init__(self, vocabulary: Vocabulary, scheme: TableScheme | None = None) -> None:
        self._num_own = vocabulary.num_own
        self._group = vocabulary.group
        self._first = self._group.rank * self._num_own
        self._dtype = vocabulary.dtype
        self._scheme = scheme
        self._loading: _Loading | None = _Loading(vocabulary, scheme)
        self.table: Table | None = None

    def load(self, tensor: torch.Tensor, kind: str = "weight") -> None:
        """Take one of the whole embedding's tensors, of a plain one its only, [vocab_size, hidden_size].

        Raises:
            ModelLoadError: a wrong shape, or a tensor that this embedding does not wait for.
        """
        tensors, self._loading = _after(self._loading, kind, tensor)
        self.table = None if tensors is None else _table(tensors, self._scheme, self._dtype)

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens] int64 -> [num_tokens, hidden_size]."""
        assert self.table is not None, "the embedding was called before its weight was loaded"
        if self._group.size == 1:
            return self.table.rows(token_ids)
        local = token_ids - self._first
        is_own = (local >= 0) & (local < self._num_own)
        rows = self.table.rows(local.clamp(0, self._num_own - 1))
        return self._group.all_reduce(rows * is_own[:, None])


class OutputHead:
    """Hidden states to logits."""

    def __init__(self, vocabulary: Vocabulary, scheme: TableScheme | None = None) -> None:
        self._group = vocabulary.group
        self._dtype = vocabulary.dtype
        self._scheme = scheme
        self._loading: _Loading | None = _Loading(vocabulary, scheme)
        self._product: Product | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether the head has its weight."""
        return self._product is not None

    def load(self, tensor: torch.Tensor, kind: str = "weight") -> None:
        """Take one of the whole head's tensors, of a plain one its only, [vocab_size, hidden_size].

        Raises:
            ModelLoadError: a wrong shape, or a tensor that this head does not wait for.
        """
        tensors, self._loading = _after(self._loading, kind, tensor)
        self._product = None if tensors is None else _table(tensors, self._scheme, self._dtype).product()

    def tie(self, embedding: VocabParallelEmbedding) -> None:
        """Use the embedding's own rows."""
        assert embedding.table is not None, "the embedding is loaded before the head is tied to it"
        self._product = embedding.table.product()

    def __call__(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[n, hidden_size] -> [n, vocab_size] float32, in `out` where it is given."""
        assert self._product is not None, "the head was called before its weight was loaded"
        if out is not None:
            return out.copy_(self._group.all_gather(self._product(hidden)))
        return self._group.all_gather(self._product(hidden).float())


def _after(
    loading: _Loading | None, kind: str, tensor: torch.Tensor
) -> tuple[Mapping[str, torch.Tensor] | None, _Loading | None]:
    """All tensors if this was the last, else what still waits for tensors."""
    if loading is None:
        raise ModelLoadError(f"tensor {kind} came twice")
    tensors = loading.load(kind, tensor)
    return tensors, None if tensors is not None else loading
