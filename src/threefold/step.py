"""The seam: all that crosses between control and tensors.

Control hands out a `StepPlan`, tensors hand back a `StepResult`; nothing else crosses. Plans carry lengths, block ids
and request ids, never tensors; drafts live on the worker's side, so a plan only says how many of them may be fed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple, Protocol, TypeVar, overload

from threefold.request import FinishReason, SamplingParams


@dataclass(frozen=True, slots=True)
class NewRow:
    """A request the worker has not seen, or must see again after preemption."""

    request_id: int
    token_ids: tuple[int, ...]
    """Prompt and, after preemption, the output so far."""
    num_prompt_tokens: int
    params: SamplingParams
    end_token_ids: frozenset[int]
    """What min_tokens keeps away until it is reached."""
    seed: int
    """Never None here: drawn at arrival when the user gave none."""
    cache_salt: str = ""


class RowPlan(NamedTuple):
    """What one request does in this step.

        tokens  [ computed before ...... | num_new ....................... ]
                0              num_computed   [ known tokens | max_draft ]

    A NamedTuple, not a dataclass: one is made a row and step, and it is made three times faster.
    """

    request_id: int
    num_computed: int
    """Tokens whose KV is valid before this step."""
    num_new: int
    """Tokens fed this step, unverified drafts included."""
    max_draft: int
    """Of num_new, drafts."""
    new_blocks: tuple[int, ...]
    """Appended to the row's block table."""
    wants_token: bool
    """False while a prompt is still being fed."""
    next_draft: int
    """Longest draft worth proposing after this step."""


_NEW_ROW_PLAN = partial(tuple.__new__, RowPlan)  # several times as fast as RowPlan(…)


class RowColumns(NamedTuple):
    """Rows' plans field by field, each [num_rows]: what asks something of all rows takes microseconds that way."""

    request_ids: Sequence[int] = ()
    num_computed: Sequence[int] = ()
    num_new: Sequence[int] = ()
    max_draft: Sequence[int] = ()
    new_blocks: Sequence[tuple[int, ...]] = ()
    wants_token: Sequence[bool] = ()
    next_draft: Sequence[int] = ()

    @classmethod
    def of(cls, rows: Sequence[RowPlan]) -> RowColumns:
        """The columns of these rows."""
        return rows.columns if isinstance(rows, ColumnRows) else cls(*zip(*rows, strict=True))

    def followed_by(self, rows: Sequence[RowPlan]) -> RowColumns:
        """With more rows behind these."""
        if not rows:
            return self
        more = RowColumns.of(rows)
        return RowColumns._make([*column, *behind] for column, behind in zip(self, more, strict=True))


_Row = TypeVar("_Row")


class LazyRows(Sequence[_Row]):
    """Rows kept in another form, each put together when somebody asks for it; equal to any that are the same."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as of any list


class ColumnRows(LazyRows[RowPlan]):
    """Rows' plans that were made column by column, each put together when somebody asks for it.

    Attributes:
        columns: what was made.
    """

    def __init__(self, columns: RowColumns) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns.request_ids)

    def __iter__(self) -> Iterator[RowPlan]:
        return map(_NEW_ROW_PLAN, zip(*self.columns, strict=True))

    @overload
    def __getitem__(self, place: int) -> RowPlan: ...
    @overload
    def __getitem__(self, place: slice) -> list[RowPlan]: ...
    def __getitem__(self, place: int | slice) -> RowPlan | list[RowPlan]:
        if isinstance(place, slice):
            return list(map(_NEW_ROW_PLAN, zip(*[column[place] for column in self.columns], strict=True)))
        return RowPlan._make([column[place] for column in self.columns])


@dataclass(frozen=True)  # without slots: a plan keeps its columns
class StepPlan:
    """Who runs in a step. Rows stand by priority where that is the policy, then by arrival."""

    rows: Sequence[RowPlan]
    new_rows: list[NewRow] = field(default_factory=list)
    """Rows to set up first; each also appears in `rows`."""
    dropped: list[int] = field(default_factory=list)
    """Request ids whose rows the worker forgets before anything else (ended, aborted, preempted)."""
    recalled: list[int] = field(default_factory=list)
    """Request ids whose lent blocks are needed by others: a drafter forgets what it kept in them, right after that."""
    lent: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Blocks that a drafter may keep its own KV in until they are recalled or the row leaves, by request id."""
    goes_on: bool = False
    """The rows are those of the step launched before, all of which choose a token and had no drafts, and each is fed
    just that token: what the worker made of that plan it need not make anew."""
    edges: Collection[int] | None = None
    """Places of the rows that begin or end here: they are fed a prompt, or this token is their last by length. All
    others go on by one token, unless it is one that ends them, and have no drafts at hand. None = nobody has looked."""

    @cached_property
    def columns(self) -> RowColumns:
        """The rows once more, field by field."""
        return RowColumns.of(self.rows)

    @property
    def num_tokens(self) -> int:
        """Tokens fed in this step, drafts included."""
        return sum(self.columns.num_new)

    @property
    def num_drafts(self) -> int:
        """Of them, drafts."""
        return sum(self.columns.max_draft)

    @property
    def num_asked(self) -> int:
        """Drafts that are asked for behind the step, at most."""
        return sum(self.columns.next_draft)

    @property
    def feeds_prompts(self) -> bool:
        """Whether some row is fed more than a token and its drafts."""
        return self.num_tokens - self.num_drafts > len(self.rows)


class TokenLogprobs(NamedTuple):
    """One token's log-probability and those of the most likely ones at its position."""

    token_id: int
    logprob: float
    rank: int
    """1 = the most likely token."""
    top: tuple[tuple[int, float], ...]
    """(token id, log-probability), most likely first."""


class RowResult(NamedTuple):
    """What one row of a plan came to, in the order of the plan's rows."""

    token_ids: list[int]
    """New committed tokens: accepted drafts and one more; empty while a prompt is being fed."""
    num_drafted: int = 0
    """Drafts that were fed and verified."""
    survival: tuple[float, ...] = ()
    """For the drafts proposed for the next step: the drafter's estimate that the 1st, 2nd, … is accepted (each the
    probability that it and all before it are); its length is the number of drafts at hand."""
    drafter: str = ""
    """Which drafter proposed the drafts behind `survival`."""
    logprobs: list[TokenLogprobs] | None = None
    """One entry a token in `token_ids`, when the request asked."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """For the prompt tokens fed in this step except the prompt's first one, when the request asked."""
    error: str | None = None
    """Set when this row alone failed; its request ends with FinishReason.ERROR."""


class TokenRows(LazyRows[RowResult]):
    """Rows that each have tokens and nothing else to say, as nearly all rows of nearly all steps.

    Attributes:
        token_ids: theirs, in the order of the plan.
    """

    def __init__(self, token_ids: list[list[int]]) -> None:
        self.token_ids = token_ids

    def __len__(self) -> int:
        return len(self.token_ids)

    def __iter__(self) -> Iterator[RowResult]:
        return map(RowResult, self.token_ids)

    @overload
    def __getitem__(self, place: int) -> RowResult: ...
    @overload
    def __getitem__(self, place: slice) -> list[RowResult]: ...
    def __getitem__(self, place: int | slice) -> RowResult | list[RowResult]:
        return list(self)[place] if isinstance(place, slice) else RowResult(self.token_ids[place])


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a plan came to."""

    rows: Sequence[RowResult]
    forward_ms: float = 0.0
    """Time of the forward pass, sampling and verification."""
    draft_ms: float = 0.0
    """Time spent proposing the next drafts."""
    idle_ms: float = 0.0
    """Time that the device had nothing to do before this step; 0 where it is not known."""
    num_draft_faults: int = 0
    """Drafters that raised or proposed nonsense; their rows went on without drafts."""
    glimpses: Mapping[int, float] = field(default_factory=dict)
    """Drafts to be expected if rows that were not asked were asked, by request id; empty = nobody looked."""


class Executor(Protocol):
    """Runs plans. The control half knows the tensor half by this alone.

    Steps run in the order of their launch: each sees all that those before it wrote, and none of what comes behind. So
    blocks may be given out anew as soon as a plan without their old owner can be launched.
    """

    def launch(self, plan: StepPlan) -> None:
        """Begin a step. One more may be launched before it is collected, if it holds no drafts and none were asked.

        A row of that second step whose last known token is still on its way is fed the token that the first one chooses
        for it; where the row turns out to have ended, what it comes to means nothing.

        Raises:
            StepMemoryError: the device lacks memory. The plan's rows are dropped and set up, and nothing else happened.
        """

    def collect(self) -> StepResult:
        """Wait for the oldest step that was launched. One row's fault is in its RowResult; an exception that is no
        StepMemoryError means that the engine is dead.
        """

    def run(self, plan: StepPlan) -> StepResult:
        """Launch a step and wait for it."""

    def close(self) -> None:
        """Free what the executor holds; it is not used again."""


class TokenDelta(NamedTuple):
    """What a step added to one request; the engine's only output. A NamedTuple for the reason that RowPlan is one."""

    request_id: int
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    """The token that ended it, when a stop or end-of-sequence token did."""
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    error: str | None = None
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    num_drafted: int = 0
    """Drafts verified for these tokens."""
    num_accepted: int = 0
    """Of them, accepted."""
    queue_s: float | None = None
    """Time from arrival to first being scheduled; set on the request's first delta."""
