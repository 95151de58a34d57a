"""An engine around a decoder whose logits are a hash of what it finds in its KV blocks.

The decoder keeps token ids in place of keys and values, so a wrong slot, position, table or context length changes the
answer. Most of its logits depend on the last two tokens, so that text repeats itself and n-gram drafts are sometimes
right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from threefold.cache.manager import CacheManager
from threefold.draft.drafter import Draft
from threefold.draft.ngram import NgramDrafter
from threefold.draft.policy import FixedDrafts, NoDrafts
from threefold.draft.suffix import SuffixDrafter
from threefold.engine.core import EngineCore
from threefold.request import Request, SamplingParams
from threefold.runner.device import CpuDevice
from threefold.runner.drafting import Drafting
from threefold.runner.executor import LocalExecutor
from threefold.runner.rows import Rows
from threefold.runner.runner import ModelRunner
from threefold.runner.worker import Worker
from threefold.sample.sampler import Sampler
from threefold.sample.verify import ExactAcceptance
from threefold.schedule.scheduler import Scheduler

VOCAB = 61
END = 60
BLOCK = 4


class HashDecoder:
    """models.decoder.Decoder's methods over a KV of token ids: kv[0] is [num_slots] int64."""

    def forward(self, batch, kv):
        kv[0][batch.slots] = batch.token_ids
        hidden = []
        starts = batch.row_starts.tolist()
        for row, context in enumerate(batch.context_lens.tolist()):
            table = batch.block_tables[row].tolist()
            known = [int(kv[0][table[i // BLOCK] * BLOCK + i % BLOCK]) for i in range(context)]
            positions = range(context - (starts[row + 1] - starts[row]), context)
            assert batch.positions[starts[row] : starts[row + 1]].tolist() == list(positions)
            hidden.extend(self.state(known[: position + 1]) for position in positions)
        return torch.tensor(hidden, dtype=torch.int64)[batch.logit_tokens].unsqueeze(1)

    def state(self, known):
        whole = hash(tuple(known)) % 2**31
        return whole if whole % 6 == 0 else hash(tuple(known[-2:])) % 2**31

    def logits(self, hidden):
        rows = [np.random.default_rng(seed).standard_normal(VOCAB) * 2 for seed in hidden[:, 0].tolist()]
        return torch.from_numpy(np.array(rows, dtype=np.float32).reshape(-1, VOCAB))

    def answer_greedy(self, known):
        return int(self.logits(torch.tensor([[self.state(known)]]))[0].argmax())


@dataclass
class RecordingDrafter:
    """Base of the tests' drafters: knows the tokens of each request, as a drafter should."""

    name: str = "recording"
    known: dict = field(default_factory=dict)

    def start(self, request_id, token_ids, salt):
        assert request_id not in self.known
        self.known[request_id] = list(token_ids)

    def observe(self, request_id, token_ids):
        self.known[request_id].extend(token_ids)

    def stop(self, request_id):
        del self.known[request_id]

    def propose(self, wanted):
        drafts = {}
        for request_id, most in wanted.items():
            tokens = self.draft(request_id, most)
            if tokens:
                drafts[request_id] = Draft(tokens, tuple(0.5**n for n in range(1, len(tokens) + 1)))
        return drafts


class RightDrafter(RecordingDrafter):
    def draft(self, request_id, most):
        known = list(self.known[request_id])
        for _ in range(most):
            known.append(HashDecoder().answer_greedy(known))
        return known[len(known) - most :]


class WrongDrafter(RecordingDrafter):
    def draft(self, request_id, most):
        right = HashDecoder().answer_greedy(self.known[request_id])
        return [(right + 1) % VOCAB] * most


class RandomDrafter(RecordingDrafter):
    """Of any length, often right for the first tokens."""

    def draft(self, request_id, most):
        known = list(self.known[request_id])
        dice = np.random.default_rng(len(known))
        for _ in range(int(dice.integers(0, most + 1))):
            known.append(HashDecoder().answer_greedy(known) if dice.random() < 0.7 else int(dice.integers(0, VOCAB)))
        return known[len(self.known[request_id]) :]


class TooLongDrafter(RecordingDrafter):
    def draft(self, request_id, most):
        return [1] * (most + 1)


class OutOfVocabularyDrafter(RecordingDrafter):
    def draft(self, request_id, most):
        return [VOCAB + 3] if request_id % 2 else [-1]


class RaisingDrafter(RecordingDrafter):
    """Raises for every second request."""

    def draft(self, request_id, most):
        if request_id % 2:
            raise ValueError("no idea")
        return RightDrafter.draft(self, request_id, most)


class ForgetfulDrafter(RecordingDrafter):
    """Raises while it is told what was committed."""

    def observe(self, request_id, token_ids):
        raise KeyError(request_id)

    def draft(self, request_id, most):
        return [1] * most


def Ngram(name="ngram"):
    return NgramDrafter(min_match=1, max_match=4)


def Suffix(name="suffix"):
    return SuffixDrafter(min_match=1, max_match=8)


DRAFTERS = {
    drafter.__name__: drafter
    for drafter in (
        Ngram,
        Suffix,
        RightDrafter,
        WrongDrafter,
        RandomDrafter,
        TooLongDrafter,
        OutOfVocabularyDrafter,
        RaisingDrafter,
        ForgetfulDrafter,
    )
}


@dataclass
class Engine:
    """A whole engine over the hash decoder."""

    drafters: list = field(default_factory=list)
    num_drafts: int = 0
    num_blocks: int = 200
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 24
    acceptance: object = field(default_factory=ExactAcceptance)
    max_model_len: int = 200
    policy: object = None
    is_overlapped: bool = False
    make_path: Callable = lambda runner, rows: None
    decoder: object = field(default_factory=HashDecoder)
    allocate: Callable = lambda num_blocks: [torch.zeros(num_blocks * BLOCK, dtype=torch.int64)]
    draft_model: Callable = None  # from the KV pool and the path to (drafter, tokens of its KV in a lent block)
    is_behind: bool = False  # the draft model drafts behind steps

    def __post_init__(self):
        device = CpuDevice(1)
        kv = self.allocate(self.num_blocks)
        rows = Rows(self.max_num_seqs, self.max_model_len, BLOCK, max_draft=max(self.num_drafts, 1))
        runner = ModelRunner(self.decoder, kv)
        path = self.make_path(runner, rows)
        model, lent_block_tokens = self.draft_model(kv, path) if self.draft_model else (None, 0)
        worker = Worker(
            runner,
            rows,
            Sampler(rows.sampling, self.acceptance),
            Drafting(self.drafters, VOCAB, model),
            device,
            path,
            behind=model if self.is_behind else None,
        )
        self.drafter = model
        policy = self.policy or (FixedDrafts(self.num_drafts) if self.num_drafts else NoDrafts())
        self.scheduler = Scheduler(
            CacheManager(self.num_blocks, BLOCK),
            policy,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            lent_block_tokens=lent_block_tokens,
        )
        self.core = EngineCore(
            self.scheduler, LocalExecutor(worker), vocab_size=VOCAB, is_overlapped=self.is_overlapped
        )
        self.deltas = {}

    def add(self, request_id, prompt, params, end=frozenset({END})):
        total = min(self.max_model_len, len(prompt) + (params.max_tokens or self.max_model_len))
        request = Request(request_id, prompt, params, max_total_tokens=total, end_token_ids=end)
        self.deltas[request_id] = []
        self.core.add_request(request)

    def step(self):
        for delta in self.core.step():
            self.deltas[delta.request_id].append(delta)
        self.scheduler.check_integrity()

    def run(self, prompts, params):
        """Answers of all prompts, run together."""
        for request_id, (prompt, wish) in enumerate(zip(prompts, params, strict=True)):
            self.add(request_id, prompt, wish)
        while self.core.has_work:
            self.step()
        return [self.answer(request_id) for request_id in range(len(prompts))]

    def answer(self, request_id):
        return [token for delta in self.deltas[request_id] for token in delta.token_ids]


@pytest.fixture(scope="session")
def engine():
    return Engine


@pytest.fixture(params=sorted(DRAFTERS))
def drafter(request):
    return DRAFTERS[request.param]()


@pytest.fixture(scope="session")
def drafters():
    return DRAFTERS


@pytest.fixture
def prompts():
    dice = np.random.default_rng(5)
    return [dice.integers(0, 50, size).tolist() for size in (1, 3, 17, 40, 8, 29)]


@pytest.fixture
def wishes():
    """One of every kind of sampling parameter, so that batches are mixed."""
    return [
        SamplingParams(max_tokens=30, temperature=0.0),
        SamplingParams(max_tokens=30, temperature=0.9, seed=3, top_p=0.9, top_k=20, logprobs=2),
        SamplingParams(max_tokens=25, temperature=0.7, seed=-1, repetition_penalty=1.3, presence_penalty=0.4),
        SamplingParams(
            max_tokens=30, temperature=0.0, frequency_penalty=1.5, logit_bias={7: 3.0, 9: -100.0}, logprobs=0
        ),
        SamplingParams(max_tokens=20, temperature=1.2, seed=2**62, min_p=0.1, min_tokens=15, prompt_logprobs=1),
        SamplingParams(
            max_tokens=30,
            temperature=1.0,
            seed=11,
            allowed_token_ids=tuple(range(0, 40)),
            bad_words_token_ids=((3,), (5, 6), (1, 2, 3)),
        ),
    ]
