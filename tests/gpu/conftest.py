"""A whole engine over a small random decoder on the card, put together as engine/build.py does it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from threefold.cache.manager import CacheManager
from threefold.draft.draft_behind import BehindDraftModel
from threefold.draft.policy import FixedDrafts, NoDrafts
from threefold.engine.core import EngineCore
from threefold.layers.attention import allocate_kv
from threefold.layers.batch import Batch
from threefold.models.decoder import Decoder
from threefold.models.shapes import expected_shapes
from threefold.models.spec import ModelSpec
from threefold.request import Request, SamplingParams
from threefold.runner.behind import GraphBehind
from threefold.runner.device import open_device
from threefold.runner.drafting import Drafting
from threefold.runner.executor import LocalExecutor
from threefold.runner.graphs import CudaCapture, GraphLimits, make_cuda_mark
from threefold.runner.lent_kv import lent_kv
from threefold.runner.path import card_path
from threefold.runner.rounds import GraphRounds
from threefold.runner.rows import Rows
from threefold.runner.runner import ModelRunner
from threefold.runner.worker import Worker
from threefold.sample.sampler import Sampler
from threefold.sample.verify import ExactAcceptance
from threefold.schedule.scheduler import Scheduler

VOCAB, BLOCK, MAX_LEN = 1000, 16, 512


@dataclass
class CardEngine:
    """An engine; requests run from their prompts to their ends."""

    decoder: Decoder
    dtype: torch.dtype
    is_overlapped: bool = True
    has_graphs: bool = True
    drafters: list = field(default_factory=list)
    num_drafts: int = 0
    max_num_seqs: int = 64
    num_blocks: int = 2048
    max_num_batched_tokens: int = 1024
    max_prompt_tokens: int = 256
    kv_dtype: torch.dtype | None = None  # None = the model's
    draft: Decoder | None = None  # a draft model; it drafts behind steps
    is_behind: bool = True

    def __post_init__(self):
        device = open_device("cuda")
        card = device.torch_device
        rows = Rows(self.max_num_seqs, MAX_LEN, BLOCK, max(self.num_drafts, 1))
        self.kv = allocate_kv(self.decoder.spec, self.num_blocks, BLOCK, self.kv_dtype or self.dtype, card)
        self.runner = ModelRunner(self.decoder, self.kv)
        self.path, self.report = card_path(
            self.runner,
            GraphLimits(self.max_num_seqs, self.num_drafts, MAX_LEN, VOCAB, self.max_prompt_tokens),
            max_tokens=self.max_num_batched_tokens,
            max_blocks=rows.block_tables.shape[1],
            device=card,
            capture=CudaCapture(card),
        )
        if not self.has_graphs:
            self.path.forward._graphs.clear()
        sampler = Sampler(rows.sampling, ExactAcceptance())
        model, lent_block_tokens = (None, 0) if self.draft is None else self._draft_model(self.draft, card)
        worker = Worker(
            self.runner,
            rows,
            sampler,
            Drafting(self.drafters, VOCAB, model),
            device,
            self.path,
            behind=model if self.is_behind else None,
        )
        self.scheduler = Scheduler(
            CacheManager(self.num_blocks, BLOCK),
            FixedDrafts(self.num_drafts) if self.num_drafts else NoDrafts(),
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            lent_block_tokens=lent_block_tokens,
        )
        self.core = EngineCore(
            self.scheduler, LocalExecutor(worker), vocab_size=VOCAB, is_overlapped=self.is_overlapped
        )

    def _draft_model(self, decoder, card):
        """A drafter over a decoder as engine/card.py makes it, and how many of its tokens lie in a lent block."""
        lent = lent_kv(self.kv, decoder.spec, "small")
        runner = ModelRunner(decoder, lent.caches)
        rows = Rows(self.max_num_seqs, MAX_LEN, BLOCK, self.num_drafts)
        limits = GraphLimits(self.max_num_seqs, self.num_drafts, MAX_LEN, VOCAB, self.max_prompt_tokens)
        path, _ = card_path(
            runner,
            limits,
            max_tokens=self.max_num_batched_tokens,
            max_blocks=rows.block_tables.shape[1],
            device=card,
            capture=CudaCapture(card),
        )
        rounds = GraphRounds(runner, path.device_rows, limits, block_size=BLOCK, max_rounds=self.num_drafts)
        behind = GraphBehind(
            rounds,
            self.path.device_rows,
            vocab_size=VOCAB,
            max_draft=self.num_drafts,
            make_mark=make_cuda_mark,
        )
        for one in (rounds, behind):
            one.capture(CudaCapture(card))
        settings = {"vocab_size": VOCAB, "max_tokens": self.max_num_batched_tokens, "max_positions": MAX_LEN}
        drafter = BehindDraftModel(behind, path.forward, lent, rows, rounds=rounds, **settings)
        return drafter, lent.units_per_block * BLOCK

    def run(self, prompts, wishes):
        """Every request's deltas."""
        deltas = {request_id: [] for request_id in range(len(prompts))}
        for request_id, (prompt, wish) in enumerate(zip(prompts, wishes, strict=True)):
            total = min(MAX_LEN, len(prompt) + wish.max_tokens)
            self.core.add_request(Request(request_id, prompt, wish, max_total_tokens=total, end_token_ids=frozenset()))
        while self.core.has_work:
            for delta in self.core.step():
                deltas[delta.request_id].append(delta)
            self.scheduler.check_integrity()
        return deltas

    def answers(self, prompts, wishes):
        """Every request's tokens."""
        return [
            [token for delta in deltas for token in delta.token_ids] for deltas in self.run(prompts, wishes).values()
        ]


@pytest.fixture(scope="session")
def card_decoder():
    """Random weights, with noise of another seed on top: the less of it, the more two models agree."""
    made = {}

    def make(dtype, noise=0.0):
        if (dtype, noise) not in made:
            spec = ModelSpec("tiny", VOCAB, 512, 4, 8, 4, 64, 1024, MAX_LEN, has_tied_head=True)
            dice, other = torch.Generator().manual_seed(3), torch.Generator().manual_seed(99)
            decoder = Decoder(spec, dtype, torch.device("cuda", 0))
            decoder.load(
                (
                    name,
                    torch.ones(shape)
                    if len(shape) == 1
                    else (torch.randn(shape, generator=dice) + noise * torch.randn(shape, generator=other))
                    * _spread(name, shape),
                )
                for name, shape in expected_shapes(spec).items()
            )
            made[dtype, noise] = decoder
        return made[dtype, noise]

    return make


def _spread(name, shape):
    return 1.0 if "embed" in name else 2 / math.sqrt(shape[1])


@pytest.fixture
def whole_prompt():
    """One row's prompt of so many tokens, in blocks of 16 one behind another."""
    card = torch.device("cuda")

    def make(num_tokens):
        place = torch.arange(num_tokens, device=card)
        return Batch(
            token_ids=place % 1000,
            positions=place,
            slots=place,
            row_starts=torch.tensor([0, num_tokens], dtype=torch.int32, device=card),
            context_lens=torch.tensor([num_tokens], dtype=torch.int32, device=card),
            block_tables=torch.arange(16, dtype=torch.int32, device=card)[None],
            logit_tokens=place,
            max_new=num_tokens,
            max_context=num_tokens,
        )

    return make


@pytest.fixture
def card_engine(card_decoder):
    def make(dtype=torch.float32, **settings):
        return CardEngine(card_decoder(dtype), dtype, **settings)

    return make


@pytest.fixture
def mixed_prompts():
    """64 prompts from one token to 300, a third of which repeat themselves."""
    dice = np.random.default_rng(5)
    prompts = [dice.integers(0, VOCAB, int(size)).tolist() for size in dice.integers(1, 300, 64)]
    return [(prompt[:12] * 30)[: len(prompt)] if i % 3 == 0 else prompt for i, prompt in enumerate(prompts)]


@pytest.fixture
def mixed_wishes():
    """Greedy and seeded draws with every filter, one of each kind in turn."""
    kinds = [
        {"temperature": 0.0},
        {"temperature": 0.7, "seed": 1, "top_p": 0.9},
        {"temperature": 1.0, "seed": 2, "top_k": 20},
        {"temperature": 0.9, "seed": 3, "min_p": 0.05, "logit_bias": {5: 2.0}},
    ]
    return [SamplingParams(max_tokens=40, ignore_eos=True, **kinds[i % len(kinds)]) for i in range(64)]
