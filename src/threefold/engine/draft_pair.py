"""A draft model beside its target: opened, compared, loaded, tried out.

Knows how the two fit together and nothing about steps; draft/draft_model.py drafts.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from threefold.config import EngineConfig
from threefold.cost import CostCurve, StepShape
from threefold.draft.draft_behind import BehindDraftModel
from threefold.draft.draft_model import DraftModelDrafter
from threefold.engine.resolve import Reason
from threefold.errors import ConfigError
from threefold.kernels.kv import KVCache
from threefold.models.checkpoint import Checkpoint, open_checkpoint
from threefold.models.decoder import Decoder
from threefold.models.locate import locate_model
from threefold.parallel import single_group
from threefold.runner.behind import GraphBehind
from threefold.runner.device import Device
from threefold.runner.forward import Forward
from threefold.runner.lent_kv import LentKV, lent_kv
from threefold.runner.path import host_path
from threefold.runner.rounds import Rounds
from threefold.runner.rows import Rows
from threefold.runner.runner import ModelRunner
from threefold.sample.verify import num_common
from threefold.text.pairing import difference
from threefold.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

TRIAL_PROMPT = "Write a short text about the history of writing.\n\nThe first people who wrote"
TRIAL_TOKENS = 64
"""Of the engine's own text."""
TRIAL_STRIDE = 3
"""A trial draft begins at every third of them."""
SYNTHETIC_CHANCE = 0.8
"""What a draft model on dummy weights is made to believe of each draft."""


@dataclass(frozen=True, slots=True)
class OpenedDraft:
    """A draft model that fits its target, before any weight is read."""

    name: str
    checkpoint: Checkpoint
    trial_prompt: tuple[int, ...]
    """What the engine writes the text of the trial about, in the target's tokens."""

    def load(self, dtype: torch.dtype, device: Device) -> Decoder:
        """The draft model, in its target's type: the two share KV memory."""
        decoder = Decoder(self.checkpoint.spec, dtype, device.torch_device, single_group())
        decoder.load(self.checkpoint.tensors(dtype, device.torch_device))
        return decoder


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A draft model over its target's KV memory."""

    name: str
    decoder: Decoder
    kv: LentKV
    forward: Forward | None = None
    """Runs it on a card; None = on the host."""
    rounds: Rounds | None = None
    """Runs all but the first pass of a step on a card."""
    behind: GraphBehind | None = None
    """Runs all of them behind a step of the target, on a card."""

    @property
    def lent_block_tokens(self) -> int:
        """Tokens of the draft model's KV that a lent block holds."""
        return self.kv.units_per_block * self.block_size

    @property
    def block_size(self) -> int:
        """Tokens of a draft block, as many as of a target's."""
        return self.kv.caches[0].block_size

    def drafter(
        self,
        *,
        max_num_seqs: int,
        max_model_len: int,
        vocab_size: int,
        max_tokens: int,
        max_draft: int,
        is_synthetic: bool,
    ) -> DraftModelDrafter:
        """A fresh drafter, as large as the engine; where acceptance is synthetic, so is what it believes."""
        rows = Rows(max_num_seqs, max_model_len, self.block_size, max_draft)
        make = DraftModelDrafter if self.behind is None else partial(BehindDraftModel, self.behind)
        return make(
            self.forward or host_path(ModelRunner(self.decoder, self.kv.caches), rows).forward,
            self.kv,
            rows,
            vocab_size=vocab_size,
            max_tokens=max_tokens,
            max_positions=self.decoder.spec.max_positions,
            assumed_chance=SYNTHETIC_CHANCE if is_synthetic else None,
            rounds=self.rounds,
        )


def open_draft(config: EngineConfig, target: Checkpoint, target_name: str) -> OpenedDraft | None:
    """The configured draft model; None = there is none.

    Raises:
        ConfigError: it does not speak the target's language.
        OperatorError: it cannot be opened.
    """
    name = config.speculation.draft_model
    if name is None or not config.speculation.uses_draft_model:
        return None
    load_format = "dummy" if config.model.load_format == "dummy" else "auto"
    checkpoint = open_checkpoint(locate_model(name, None), load_format, config.model.seed)
    tokenizer = Tokenizer.from_facts(target.plain_tokenizer_facts)
    found = difference(tokenizer, Tokenizer.from_facts(checkpoint.plain_tokenizer_facts))
    if found is not None:
        raise ConfigError(
            f"draft '{name}' {found} with target '{target_name}': not the same tokenizer; take a smaller model of the "
            'target\'s own family, or {"method": "ngram"}, which needs none'
        )
    return OpenedDraft(name, checkpoint, tuple(tokenizer.encode(TRIAL_PROMPT)))


def share_memory(opened: OpenedDraft, decoder: Decoder, kv: list[KVCache]) -> LoadedDraft:
    """Put the draft model's KV into the target's.

    Raises:
        ConfigError: it does not fit.
    """
    return LoadedDraft(opened.name, decoder, lent_kv(kv, decoder.spec, opened.name))


class Trial(NamedTuple):
    """What the draft model did with the engine's own text."""

    accepted: float
    """Drafts that came true, per draft of max_draft tokens."""
    draft_ms: float
    """Time of such a draft."""
    max_draft: int

    def reason(self, curve: CostCurve) -> Reason:
        """The verdict for one user, who gains most; warns when even he loses."""
        plain = StepShape(1, 1, TRIAL_TOKENS)
        drafted_ms = curve.forward_ms(plain._replace(num_tokens=1 + self.max_draft)) + self.draft_ms
        gain = (1 + self.accepted) * curve.forward_ms(plain) / drafted_ms
        what = f"{1 + self.accepted:.2f} tokens a step of {1 + self.max_draft} in a trial on the engine's own text"
        if gain < 1:
            logger.warning("the draft model would slow one user down to %.2f: %s; it will hardly be used", gain, what)
        return Reason("draft model", f"{gain:.2f} × for one user", what)


def try_out(drafter: DraftModelDrafter, text: list[int], num_prompt: int, max_draft: int, num_blocks: int) -> Trial:
    """Draft along a text that the target wrote; nobody else uses the KV memory yet.

    Args:
        drafter: fresh.
        text: prompt and answer.
        num_prompt: tokens of the prompt.
        max_draft: tokens a draft.
        num_blocks: blocks to lend, enough for text and draft.
    """
    accepted, times_ms = 0, []
    drafter.start(0, text[:num_prompt], "")
    drafter.lend(0, range(num_blocks))
    ends = range(num_prompt, len(text) - max_draft, TRIAL_STRIDE)
    for end in ends:
        started_s = time.perf_counter()
        draft = drafter.propose({0: max_draft}).get(0)
        times_ms.append((time.perf_counter() - started_s) * 1000)
        if draft is not None:
            accepted += num_common(draft.token_ids, text[end:])
        drafter.observe(0, text[end : end + TRIAL_STRIDE])
    drafter.stop(0)
    return Trial(accepted / len(ends), sorted(times_ms)[len(times_ms) // 2], max_draft)
