"""Flags of `threefold profile` and `threefold advise`, and what they come to. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass

from threefold.advise.trace import DEFAULT_OUTPUT_TOKENS
from threefold.bench.load_options import HTML_HELP
from threefold.flags.flag import Flag
from threefold.flags.values import integer, number, one, output_file, switch, text, words


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How a log is read, and where results go."""

    output_tokens: int = DEFAULT_OUTPUT_TOKENS
    """Length of answers that the log does not have."""
    include_text: bool = False
    """Show beginnings of prompts."""
    json: str | None = None
    """File for the figures."""
    html: str | None = None
    """File for a page with curves."""


@dataclass(frozen=True, slots=True)
class AdviseOptions:
    """What the verdicts are for."""

    concurrency: int | None = None
    """Users; None = by the log's own rate."""
    targets: tuple[str, ...] = ()
    """ttft:MS, tpot:MS, e2e:MS."""
    machine: str | None = None
    """File with a machine's figures, in place of measuring this one."""
    save_machine: str | None = None
    """File to keep this machine's figures in."""
    quality: tuple[str, ...] = ()
    """Files of `threefold quality`, for what quantising does to answers."""
    draft_ratio: float = 0.1
    """A draft model's size over the model's."""
    draft_acceptance: float = 0.6
    """Chance that its tokens are right."""
    has_answers_made: bool = False
    """Let the model answer the log's prompts first, and judge by these answers."""
    is_verified: bool = False
    """Measure what can be tried without other weights, and show it beside what was predicted."""
    users: tuple[int, ...] = (1, 4, 16)
    """Numbers of users to verify at."""
    rounds: int = 3
    """Measurements of each cell."""
    is_by_kind: bool = False
    """Verify every kind of request as a load of its own."""
    is_reloading: bool = False
    """Measure levers too for which the model must be loaded anew."""
    awq_model: str | None = None
    """Folder of the model in AWQ, for its cells."""
    markdown: str | None = None
    """File for the table of predicted against measured."""


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """How the settings are found, and where they go."""

    output: str = "threefold.yaml"
    """File for `serve --config`."""
    is_exhaustive: bool = False
    """Measure every max_num_seqs beside."""


@dataclass(frozen=True, slots=True)
class LadderOptions:
    """What the ladder is climbed with."""

    users: tuple[int, ...] = (1, 4, 16)
    """Numbers of users."""
    max_tokens: int = 64
    """Mean length of answers."""
    budget_s: float = 330.0
    """Seconds for everything but loading."""
    json: str | None = None
    """File for the figures."""
    html: str | None = None
    """File for a page with curves."""


def _one_count(value: str) -> tuple[int, ...]:
    """Whole numbers of a list, `1 4 16` or `1,4,16`."""
    return tuple(integer(1)(part) for part in words(value))


LOG_FLAGS = (
    Flag("output-tokens", "log.output_tokens", integer(1), "length assumed of answers that the log does not have",
         metavar="TOKENS"),
    Flag("include-text", "log.include_text", switch, "show beginnings of prompts; without it no text is shown",
         kind="switch"),
    Flag("json", "log.json", output_file, "write all figures there", metavar="FILE"),
    Flag("html", "log.html", output_file, HTML_HELP, metavar="FILE"),
)  # fmt: skip

ADVISE_FLAGS = (
    Flag("concurrency", "advise.concurrency", integer(1), "users at once; default: by the log's own rate",
         metavar="N"),
    Flag("slo", "advise.targets", one, "targets that nine requests in ten must meet: ttft:500,tpot:50 (ms), also e2e",
         kind="list", aliases=("--goodput",), metavar="TARGET"),
    Flag("machine", "advise.machine", text, "figures of a machine from a file, in place of measuring this one",
         metavar="FILE"),
    Flag("save-machine", "advise.save_machine", output_file, "keep this machine's figures for --machine",
         metavar="FILE"),
    Flag("quality", "advise.quality", one, "what quantising does to answers, as `threefold quality --json` wrote it; "
         "one file a lever", kind="list", metavar="FILE"),
    Flag("draft-ratio", "advise.draft_ratio", number(0, 1, is_low_open=True),
         "size of a draft model over the model's, for its verdict", metavar="RATIO"),
    Flag("draft-acceptance", "advise.draft_acceptance", number(0, 1),
         "share of a draft model's tokens assumed to be right", metavar="SHARE"),
    Flag("answer", "advise.has_answers_made", switch,
         "let the model answer the log's prompts first (at most --output-tokens each): for logs without answers, or "
         "with another model's", kind="switch"),
    Flag("verify", "advise.is_verified", switch,
         "measure levers on this machine and show it beside the prediction: twice the running requests, prefix "
         "caching, ngram and suffix", kind="switch"),
    Flag("users", "advise.users", _one_count, "numbers of users for --verify (default 1 4 16)", kind="list",
         metavar="N"),
    Flag("rounds", "advise.rounds", integer(1), "measurements of each cell (default 3); of two or more, up to two more "
         "where they scatter", metavar="N"),
    Flag("by-kind", "advise.is_by_kind", switch, "verify each kind of request as a load of its own", kind="switch"),
    Flag("reload", "advise.is_reloading", switch,
         "on a card, measure FP8 weights, FP8 KV and --awq-model too, which are reckoned else: the model is loaded for "
         "each, and once more with --verify", kind="switch"),
    Flag("awq-model", "advise.awq_model", text, "the model in AWQ, a folder, for --reload", metavar="FOLDER"),
    Flag("markdown", "advise.markdown", output_file, "write the table of predicted against measured there",
         metavar="FILE"),
)  # fmt: skip

_FOR_ADVISE_ALONE = ("machine", "verify", "users", "by-kind", "markdown")
TUNE_ADVICE_FLAGS = tuple(flag for flag in ADVISE_FLAGS if flag.name not in _FOR_ADVISE_ALONE)
"""What `tune` shows of them: it measures by itself."""

TUNE_FLAGS = (
    Flag("output", "tune.output", output_file, "file for `serve --config` (default threefold.yaml)",
         metavar="FILE.yaml"),
    Flag("exhaustive", "tune.is_exhaustive", switch,
         "measure every max_num_seqs beside, --rounds times, and say how far off the knee was that was found without",
         kind="switch"),
)  # fmt: skip

LADDER_FLAGS = (
    Flag("users", "ladder.users", _one_count, "numbers of users (default 1 4 16)", kind="list", metavar="N"),
    Flag("max-tokens", "ladder.max_tokens", integer(2), "mean length of answers (default 64)", metavar="TOKENS"),
    Flag("budget-s", "ladder.budget_s", number(1), "seconds for everything but loading (default 330)",
         metavar="SECONDS"),
    Flag("json", "ladder.json", output_file, "write all figures there", metavar="FILE"),
    Flag("html", "ladder.html", output_file, HTML_HELP, metavar="FILE"),
)  # fmt: skip
