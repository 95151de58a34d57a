"""Token embedding and output head, both divided by vocabulary among the ranks."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from threefold.errors import ModelLoadError
from threefold.kernels.linear import Product, product
from threefold.parallel import Group, shard


class VocabParallelEmbedding:
    """Rows of the embedding; a rank knows some tokens, the others come to it as zeros and are summed in."""

    def __init__(
        self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype, device: torch.device, group: Group
    ) -> None:
        self._num_own = shard(vocab_size, group, "vocabulary")
        self._first = group.rank * self._num_own
        self._group = group
        self._full_shape = (vocab_size, hidden_size)
        self._dtype = dtype
        self._device = device
        self.weight: torch.Tensor | None = None  # [own tokens, hidden_size]

    def load(self, tensor: torch.Tensor) -> None:
        """Take the whole embedding, [vocab_size, hidden_size].

        Raises:
            ModelLoadError: a wrong shape.
        """
        self.weight = own_vocabulary(tensor, self._full_shape, self._group).to(
            device=self._device, dtype=self._dtype, copy=True
        )

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens] int64 -> [num_tokens, hidden_size]."""
        assert self.weight is not None, "the embedding was called before its weight was loaded"
        if self._group.size == 1:
            return F.embedding(token_ids, self.weight)
        local = token_ids - self._first
        is_own = (local >= 0) & (local < self._num_own)
        rows = F.embedding(local.clamp(0, self._num_own - 1), self.weight)
        return self._group.all_reduce(rows * is_own[:, None])


class OutputHead:
    """Hidden states to logits."""

    def __init__(
        self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype, device: torch.device, group: Group
    ) -> None:
        shard(vocab_size, group, "vocabulary")
        self._group = group
        self._full_shape = (vocab_size, hidden_size)
        self._dtype = dtype
        self._device = device
        self._product: Product | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether the head has its weight."""
        return self._product is not None

    def load(self, tensor: torch.Tensor) -> None:
        """Take the whole head, [vocab_size, hidden_size].

        Raises:
            ModelLoadError: a wrong shape.
        """
        own = own_vocabulary(tensor, self._full_shape, self._group)
        self._product = product(own.to(device=self._device, dtype=self._dtype), None)

    def tie(self, embedding: VocabParallelEmbedding) -> None:
        """Use the embedding's own rows. A body that orders weights its own way makes its one copy here."""
        assert embedding.weight is not None, "the embedding is loaded before the head is tied to it"
        self._product = product(embedding.weight, None)

    def __call__(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[n, hidden_size] -> [n, vocab_size] float32, in `out` where it is given."""
        assert self._product is not None, "the head was called before its weight was loaded"
        if out is not None:
            return out.copy_(self._group.all_gather(self._product(hidden)))
        return self._group.all_gather(self._product(hidden).float())


def own_vocabulary(tensor: torch.Tensor, full_shape: tuple[int, int], group: Group) -> torch.Tensor:
    """A view of this rank's rows of a [vocab_size, hidden_size] tensor.

    Raises:
        ModelLoadError: a wrong shape.
    """
    if tuple(tensor.shape) != full_shape:
        raise ModelLoadError(f"an embedding has shape {list(tensor.shape)}, the model needs {list(full_shape)}")
    own = full_shape[0] // group.size
    return tensor.narrow(0, group.rank * own, own)
