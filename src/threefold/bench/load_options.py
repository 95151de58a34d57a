"""Flags that say what a load sends, and what they come to. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass

from threefold.flags.flag import Flag
from threefold.flags.values import choice, integer, number, one, output_file, seed, switch, text


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What is sent, and where the result goes."""

    dataset: str | None = None
    """JSON lines to read prompts from."""
    dataset_name: str = "auto"
    """The data set's form: one of forms.FORMS, trace, random, or auto."""
    group: str = "all"
    """all, extract, prose, mixed, short, or categories joined by commas."""
    num_prompts: int | None = None
    """Requests to send; None = every prompt of the group once."""
    concurrency: int | None = None
    """Requests at once; None = 16 over HTTP, all of them offline."""
    max_tokens: int = 256
    """Tokens wanted a request, where the data set does not say."""
    output_len: int | None = None
    """Tokens wanted of every request, whatever the data set says; None = as it says."""
    trace_block_tokens: int = 512
    """Prompt tokens that one of a trace's hashes stands for."""
    length_scale: float = 1.0
    """A trace's lengths are multiplied by it."""
    random_input_len: int = 1024
    """Tokens of a made-up prompt."""
    random_prefix_len: int = 0
    """Tokens that all made-up prompts begin with, beside their own."""
    random_range_ratio: float = 0.0
    """Made-up lengths are spread evenly by this share to both sides."""
    temperature: float = 0.0
    """0 = greedy."""
    ignore_eos: bool = False
    """Go on to max_tokens."""
    shuffle_seed: int = 0
    """Of the choice of prompts, and of sampling."""
    num_warmups: int = 0
    """Requests sent before the clock starts."""
    goodput: tuple[str, ...] = ()
    """Limits such as ttft:500 (ms)."""
    json: str | None = None
    """File to write the result to."""
    label: str | None = None
    """A name for the run, kept in the result."""


JSON_HELP = "file to write the result to"
DATASET_HELP = 'JSON lines: Spec-Bench\'s or {"prompt": ...}'
PLOT_HELP = "picture to draw: .png, .svg or .pdf (needs the extra `plot`)"
HTML_HELP = "one page with curves and tables, to open in a browser (needs the extra `plot`)"
DATASET_NAMES = ("auto", "spec_bench", "sharegpt", "humaneval", "custom", "openai_batch", "trace", "random")


LOAD_FLAGS = (
    Flag("dataset", "load.dataset", text, "prompts, as JSON lines or a JSON list, gzipped or not",
         aliases=("--dataset-path",), metavar="FILE"),
    Flag("dataset-name", "load.dataset_name",
         choice(*DATASET_NAMES, mooncake="trace", **{"spec-bench": "spec_bench"}),
         f"its form: {', '.join(DATASET_NAMES)} (auto), mooncake = trace", metavar="FORM"),
    Flag("group", "load.group", text, "all, extract, prose, mixed, short, or categories with commas",
         aliases=("--spec-bench-category",), metavar="GROUP"),
    Flag("num-prompts", "load.num_prompts", integer(1), "requests to send; default: each prompt once", metavar="N"),
    Flag("max-tokens", "load.max_tokens", integer(1), "tokens wanted where the data set does not say (256)",
         metavar="N"),
    Flag("output-len", "load.output_len", integer(1), "tokens wanted of every request, whatever the data set says",
         aliases=("--spec-bench-output-len", "--custom-output-len", "--sharegpt-output-len", "--random-output-len"),
         metavar="N"),
    Flag("temperature", "load.temperature", number(0, 2), "0 = greedy, the default", metavar="T"),
    Flag("ignore-eos", "load.ignore_eos", switch, "go on to max-tokens", kind="switch"),
    Flag("random-input-len", "load.random_input_len", integer(1), "tokens of a random prompt (1024)",
         aliases=("--input-len",), metavar="N"),
    Flag("random-prefix-len", "load.random_prefix_len", integer(0), "tokens that random prompts share before it (0)",
         metavar="N"),
    Flag("random-range-ratio", "load.random_range_ratio", number(0, 1), "spread of random lengths to both sides (0)",
         metavar="SHARE"),
    Flag("length-scale", "load.length_scale", number(0, is_low_open=True), "factor on a trace's lengths (1)",
         metavar="F"),
    Flag("trace-block-tokens", "load.trace_block_tokens", integer(1), "tokens that a trace's hash stands for (512)",
         metavar="N"),
    Flag("num-warmups", "load.num_warmups", integer(0), "requests sent before the clock starts (0)", metavar="N"),
    Flag("goodput", "load.goodput", one, "limits in ms: ttft:500 tpot:50 e2el:5000", kind="list", metavar="LIMIT"),
    Flag("label", "load.label", text, "a name for the run, kept in the result", metavar="NAME"),
    Flag("json", "load.json", output_file, JSON_HELP, aliases=("--output-json",), metavar="FILE"),
)  # fmt: skip
CONCURRENCY_FLAG = Flag(
    "concurrency",
    "load.concurrency",
    integer(1, 65536),
    "requests at once (compare: 16, offline: all)",
    aliases=("--max-concurrency",),
    metavar="N",
)
SEED_FLAG = Flag("seed", "load.shuffle_seed", seed, "of the choice of prompts and of sampling (0)", metavar="N")
SHUFFLE_SEED_FLAG = Flag("shuffle-seed", "load.shuffle_seed", seed, "of the choice of prompts (0)", metavar="N")
