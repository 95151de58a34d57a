"""One small frozen config per component; the only reader of the environment.

Each field has its unit, its one default and a line of doc (checked by tests/test_architecture.py). Values here are what
was *asked*; engine/resolve.py turns them into what *holds*, with the reason for each.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DEFAULT_BLOCK_SIZE = 16
SPIN_COUNT = 2000
"""Turns that a waiting OpenMP thread spins, some microseconds."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model, and how it is read."""

    model: str | None = None
    """Folder, GGUF file or hub id; None = the default model, fetched when it is not there."""
    served_model_names: tuple[str, ...] = ()
    """Names the API answers to, the first one shown; empty = `model` as typed."""
    tokenizer: str | None = None
    """Folder or tokenizer.json to use in place of the model's own."""
    revision: str | None = None
    """Hub revision; None = the newest."""
    dtype: str = "auto"
    """auto, bfloat16, float16 or float32; auto = what the checkpoint has and the device does well."""
    quantization: str | None = None
    """Quantisation scheme; None = what the checkpoint says."""
    quantize_embeddings: str = "auto"
    """auto = embedding and output head in 8 bits where a card's products are quantised; none = as the checkpoint has
    them."""
    load_format: str = "auto"
    """auto, safetensors, gguf or dummy (seeded random weights of the config's shapes)."""
    max_model_len: int | None = None
    """Most tokens a request may have, prompt and answer; None = the model's own limit, stepped down to what fits."""
    seed: int = 0
    """Seed of dummy weights and of requests that bring none."""
    generation_config: str = "auto"
    """auto = sampling defaults from the model's generation_config.json; vllm = the API's own; or a folder."""
    chat_template: str | None = None
    """Jinja file or text in place of the model's own template."""


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = DEFAULT_BLOCK_SIZE
    """Tokens a block."""
    enable_prefix_caching: bool = True
    """Share full blocks of equal prefixes."""
    gpu_memory_utilization: float = 0.9
    """Share of the device's memory the engine may use, (0, 1]; on a CPU, of the memory that is free at start."""
    kv_cache_memory_bytes: int | None = None
    """Exact size of the KV cache; None = by utilization (on a CPU at most 4 GiB)."""
    num_blocks: int | None = None
    """Exact number of blocks, for tests of preemption; None = from the memory."""
    kv_cache_dtype: str = "auto"
    """auto = the model's dtype; fp8 or fp8_e4m3 = half of that, on a card."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Continuous batching."""

    max_num_seqs: int | None = None
    """Most requests that run at once; None = 256 on a GPU, 64 on a CPU."""
    max_num_batched_tokens: int | None = None
    """Most tokens in a step; None = 8192 on a GPU, 512 on a CPU."""
    policy: str = "fcfs"
    """fcfs or priority (smaller values first)."""
    long_prefill_token_threshold: int = 0
    """Most tokens of one prompt in a step; 0 = the step's budget alone decides."""
    max_num_queued_reqs: int | None = None
    """Most waiting requests before new ones are refused with 503; None = four times max_num_seqs, at least 256."""


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Speculative decoding; by default n-gram, adaptive."""

    methods: tuple[str, ...] = ("ngram",)
    """Drafters to use: ngram, suffix, draft_model; empty = off."""
    num_speculative_tokens: int = 8
    """Most drafts a row and step."""
    is_adaptive: bool = True
    """The controller decides how many drafts pay; False = always as many as proposed."""
    prompt_lookup_min: int = 1
    """Shortest n-gram match that may draft, tokens."""
    prompt_lookup_max: int = 8
    """Longest n-gram match looked for, tokens."""
    draft_model: str | None = None
    """Folder, GGUF file or hub id of the draft model."""
    rejection_sample_method: str = "standard"
    """standard (exact) or synthetic (acceptance by decree, for benchmarks on dummy weights)."""
    synthetic_acceptance_rates: tuple[float, ...] = ()
    """Synthetic only: probability that the 1st, 2nd, … draft is accepted, unconditional, not increasing."""

    @property
    def is_enabled(self) -> bool:
        """True when any drafter is configured."""
        return self.max_draft_tokens > 0

    @property
    def uses_draft_model(self) -> bool:
        """True when a second model drafts."""
        return self.is_enabled and "draft_model" in self.methods

    @property
    def max_draft_tokens(self) -> int:
        """Most drafts a row and step; 0 = off."""
        return self.num_speculative_tokens if self.methods else 0


@dataclass(frozen=True, slots=True)
class SloConfig:
    """Latency targets that the engine holds."""

    targets: tuple[tuple[str, float], ...] = ()
    """(name, milliseconds): ttft, of the first token; tpot, of the mean time between tokens."""


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """How many cards one model is spread over."""

    tensor_parallel_size: int = 1
    """Ranks of the tensor-parallel group."""


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """Where tensors live."""

    device: str = "auto"
    """auto, cpu or cuda."""
    num_threads: int | None = None
    """CPU threads for products and attention; None = all cores this process may use."""
    enforce_eager: bool = False
    """On a card, launch steps kernel by kernel, without captured graphs: slower, saves their memory and capturing."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """All an engine is built from; only the files behind engine/build.py and engine/resolve.py see it whole."""

    model: ModelConfig = ModelConfig()
    """Which model."""
    cache: CacheConfig = CacheConfig()
    """The KV cache."""
    scheduler: SchedulerConfig = SchedulerConfig()
    """Batching."""
    speculation: SpeculationConfig = SpeculationConfig()
    """Drafts."""
    slo: SloConfig = SloConfig()
    """Latency targets."""
    parallel: ParallelConfig = ParallelConfig()
    """Cards."""
    device: DeviceConfig = DeviceConfig()
    """Device."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The HTTP server."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 = every interface."""
    port: int = 8000
    """TCP port; 0 = any free one."""
    uds: str | None = None
    """Unix socket path in place of host and port."""
    api_keys: tuple[str, ...] = ()
    """Accepted bearer keys; empty = open to whoever reaches the port."""
    allowed_origins: tuple[str, ...] = ()
    """CORS origins; empty = none."""
    root_path: str = ""
    """Path prefix behind a proxy."""
    max_body_bytes: int = 8 * 1024 * 1024
    """Largest request body; more is answered 413."""
    max_header_bytes: int = 64 * 1024
    """Largest request head; more is answered 431."""
    shutdown_timeout_s: float = 30.0
    """Seconds that running requests may take after SIGTERM before they are aborted."""
    overload_status: int = 503
    """Status of a refused request when the queue is full: 503 or 429."""
    stream_interval: int = 1
    """Tokens to gather before a stream's next chunk."""
    sse_keep_alive_interval_s: float = 15.0
    """Seconds of silence after which a stream gets a comment, so that no proxy closes it; 0 = never."""
    enable_log_requests: bool = False
    """One structured log line a request (never its text)."""
    log_format: str = "text"
    """text or json."""
    log_level: str = "info"
    """Least level of log lines: debug, info, warning or error."""
    log_stats_interval_s: float = 10.0
    """Seconds between throughput lines; 0 = none."""
    enable_prompt_tokens_details: bool = True
    """Report cached prompt tokens in usage."""
    enable_docs: bool = True
    """Serve /docs and /openapi.json."""
    ssl_keyfile: str | None = None
    """TLS key file."""
    ssl_certfile: str | None = None
    """TLS certificate file."""
    record: str | None = None
    """File to append a line to for every answer, for `threefold profile` and `advise`; None = no recording."""
    record_content: str = "hashes"
    """What a recording holds of prompts and answers: text, hashes or none."""


def cache_folder() -> Path:
    """The user's folder for fetched models and calibrations: $THREEFOLD_CACHE, else $XDG_CACHE_HOME/threefold."""
    explicit = os.environ.get("THREEFOLD_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "threefold"


def api_keys_from_environment() -> tuple[str, ...]:
    """Keys in $THREEFOLD_API_KEY or $VLLM_API_KEY, comma separated."""
    value = os.environ.get("THREEFOLD_API_KEY") or os.environ.get("VLLM_API_KEY") or ""
    return tuple(key.strip() for key in value.split(",") if key.strip())


def engine_environment() -> dict[str, str]:
    """Environment of the engine process: this one's, and how long OpenMP's threads spin before they sleep.

    GNU OpenMP spins for milliseconds by default, which is right on a machine of one's own; where the server's process
    or anything else wants a core, steps become several times slower (docs/LOG.md has the readings). Whoever has set one
    of the two variables keeps what was set.
    """
    environment = dict(os.environ)
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
    return environment
