"""Flags that users of other engines type and Threefold does not build: each is refused by name, with the reason.

A flag given the value that Threefold has anyway (`--pipeline-parallel-size 1`, `--no-enable-lora`) changes nothing and
passes. Nothing here is ever ignored in silence.
"""

from __future__ import annotations

from typing import NamedTuple

NOT_BUILT = "known to vLLM, not built in Threefold yet"
_CODE = "Threefold never runs code that comes with a model or a flag"
_DENSE = "Threefold serves dense decoders"
_ONE_MACHINE = "Threefold runs on one machine; run one server a replica behind a router"
_TEXT = "Threefold serves text only"
_ONE_BLOCK_POOL = "KV blocks stay on the device; a preempted request is recomputed"


class Refusal(NamedTuple):
    """Why a flag is refused, and which values are harmless all the same."""

    reason: str
    harmless: tuple[str, ...] = ("false",)

    @property
    def takes_value(self) -> bool:
        """True when the flag is followed by a value that decides whether it is harmless."""
        return any(value not in ("true", "false") for value in self.harmless)


# (names, reason, values that are what Threefold does anyway; "false" is the --no- form)
_GROUPS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("trust-remote-code tool-parser-plugin logits-processors middleware scheduler-cls worker-cls "
     "worker-extension-cls model-loader-extra-config io-processor-plugin reasoning-parser-plugin", _CODE, ("false",)),
    ("pipeline-parallel-size data-parallel-size prefill-context-parallel-size decode-context-parallel-size nnodes",
     f"only 1: {_ONE_MACHINE}", ("1",)),
    ("data-parallel-address data-parallel-rpc-port data-parallel-rank data-parallel-start-rank "
     "data-parallel-size-local data-parallel-backend data-parallel-external-lb data-parallel-hybrid-lb master-addr "
     "master-port headless", _ONE_MACHINE, ("false",)),
    ("node-rank", _ONE_MACHINE, ("0",)),
    ("api-server-count", "one HTTP process carries the engine's whole stream", ("1",)),
    ("distributed-executor-backend", "ranks are processes of this machine", ("uni", "mp")),
    ("worker-use-ray ray-workers-use-nsight", _ONE_MACHINE, ("false",)),
    ("enable-expert-parallel enable-eplb eplb-config all2all-backend enable-dbo ubatch-size "
     "dbo-decode-token-threshold dbo-prefill-token-threshold enable-elastic-ep expert-placement-strategy "
     "num-redundant-experts moe-backend enable-ep-weight-filter", f"{_DENSE}, without experts", ("false", "auto")),
    ("enable-lora max-loras max-lora-rank max-cpu-loras lora-dtype lora-modules fully-sharded-loras "
     "lora-extra-vocab-size default-mm-loras enable-tower-connector-lora enable-mixed-moe-lora-format "
     "lora-target-modules specialize-active-lora",
     "LoRA adapters are not built; merge the adapter into the weights", ("false",)),
    ("enable-prompt-adapter max-prompt-adapters enable-prompt-embeds",
     "tensors from clients are not accepted", ("false",)),
    ("limit-mm-per-prompt media-io-kwargs interleave-mm-strings video-pruning-rate skip-mm-profiling "
     "allowed-local-media-path allowed-media-domains enable-mm-embeds language-model-only", _TEXT, ("false", "{}")),
    ("runner", "Threefold generates text", ("auto", "generate")),
    ("task convert pooler-config override-pooler-config", "Threefold generates text", ("auto", "generate", "none")),
    ("kv-transfer-config ec-transfer-config weight-transfer-config kv-events-config kv-sharing-fast-prefill "
     "enable-sleep-mode", NOT_BUILT, ("false",)),
    ("kv-offloading-size cpu-offload-gb cpu-offload-params", _ONE_BLOCK_POOL, ("0",)),
    ("kv-offloading-backend", _ONE_BLOCK_POOL, ("native",)),
    ("tokenizer-mode", "the checkpoint's own tokenizer.json is used", ("auto", "hf")),
    ("skip-tokenizer-init hf-config-path hf-overrides hf-token code-revision tokenizer-revision config-format "
     "quantization-config quantization-param-path allow-deprecated-quantization safetensors-load-strategy "
     "ignore-patterns download-dir use-tqdm-on-load override-generation-config disable-sliding-window "
     "use-fp64-gumbel pt-load-map-location renderer-num-workers tensorizer-uri override-attention-dtype "
     "enable-return-routed-experts", NOT_BUILT, ("false",)),
    ("model-impl", "Threefold has its own definitions of the families it serves", ("auto",)),
    ("disable-cascade-attn", "there is no cascade attention", ("true", "false")),
    ("max-logprobs", "the limit is 20", ("20",)),
    ("logprobs-mode", "log-probabilities are those of the model, before penalties and temperature", ("raw_logprobs",)),
    ("prefix-caching-hash-algo", "blocks are named by a cryptographic hash", ("sha256",)),
    ("calculate-kv-scales", "scales of an FP8 cache are the checkpoint's, or measured at start", ("false",)),
    ("kv-cache-dtype-skip-layers", "all layers' KV has one dtype", ("false",)),
    ("mamba-cache-dtype mamba-ssm-cache-dtype mamba-block-size mamba-cache-mode mamba-backend gdn-prefill-backend",
     f"{_DENSE}, without state-space layers", ("auto",)),
    ("max-num-active-seqs max-num-queued-tokens", NOT_BUILT, ()),
    ("max-num-partial-prefills max-long-partial-prefills", "prompts share a step by its token budget", ("1",)),
    ("scheduler-reserve-full-isl", "a prompt is always admitted with blocks for its whole length", ("true",)),
    ("watermark", "admission always keeps a block spare for each running request", ("0", "0.0")),
    ("prefill-schedule-interval", NOT_BUILT, ("1",)),
    ("disable-hybrid-kv-cache-manager disable-chunked-mm-input", "there is one kind of KV block", ("true", "false")),
    ("num-scheduler-steps", "removed from vLLM; drafts are how Threefold makes several tokens a step", ("1",)),
    ("use-v2-block-manager", "removed from vLLM; KV is always paged", ("true",)),
    ("preemption-mode", "preempted requests are recomputed", ("recompute",)),
    ("device-ids numa-bind numa-bind-nodes numa-bind-cpus", NOT_BUILT, ("false",)),
    ("optimization-level performance-mode compilation-config cudagraph-capture-sizes max-cudagraph-capture-size "
     "attention-backend attention-config linear-backend ir-op-priority enable-flashinfer-autotune kernel-config "
     "mamba-config max-seq-len-to-capture", f"{NOT_BUILT}: kernels and graphs are chosen by measurement",
     ("auto", "balanced")),
    ("otlp-traces-endpoint collect-detailed-traces show-hidden-metrics-for-version kv-cache-metrics "
     "kv-cache-metrics-sample cudagraph-metrics enable-mfu-metrics enable-logging-iteration-details "
     "enable-layerwise-nvtx-tracing profiler-config custom-histogram-buckets aggregate-engine-logging "
     "jit-monitor-mode enable-server-load-tracking", NOT_BUILT, ("false",)),
    ("ssl-ca-certs ssl-cert-reqs ssl-ciphers enable-ssl-refresh allow-credentials allowed-methods allowed-headers "
     "h11-max-header-count disable-access-log-for-endpoints disable-frontend-multiprocessing log-config-file "
     "max-log-len enable-log-outputs enable-log-deltas enable-force-include-usage enable-per-request-metrics "
     "return-tokens-as-token-ids tokens-only grpc enable-tokenizer-info-endpoint "
     "per-request-spec-decode-metrics fingerprint-mode structured-outputs-config guided-decoding-backend "
     "guided-decoding-disable-fallback reasoning-parser reasoning-config enable-reasoning enable-auto-tool-choice "
     "tool-call-parser tool-server exclude-tools-when-tool-choice-none default-chat-template-kwargs "
     "enable-offline-docs additional-config stream-buffer-size", NOT_BUILT, ("false", "")),
    ("chat-template-content-format", "text parts are joined as the template expects them", ("auto", "string")),
    ("trust-request-chat-template", "a template from a request is never run", ("false",)),
    ("response-role", "answers come from the assistant", ("assistant",)),
)  # fmt: skip

# Families with one answer, by how the name begins.
_PREFIXES: tuple[tuple[str, str], ...] = (
    ("offload-", _ONE_BLOCK_POOL),
    ("mm-", _TEXT),
    ("lora-", "LoRA adapters are not built; merge the adapter into the weights"),
    ("mamba-", f"{_DENSE}, without state-space layers"),
    ("numa-bind", NOT_BUILT),
    ("data-parallel-", _ONE_MACHINE),
    ("eplb-", f"{_DENSE}, without experts"),
    ("dbo-", f"{_DENSE}, without experts"),
)

SHORT_NAMES = {
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-pcp": "prefill-context-parallel-size",
    "-dcp": "decode-context-parallel-size",
    "-dpn": "data-parallel-rank",
    "-dpr": "data-parallel-start-rank",
    "-dpl": "data-parallel-size-local",
    "-dpa": "data-parallel-address",
    "-dpp": "data-parallel-rpc-port",
    "-dpb": "data-parallel-backend",
    "-dph": "data-parallel-hybrid-lb",
    "-dpe": "data-parallel-external-lb",
    "-ep": "enable-expert-parallel",
    "-n": "nnodes",
    "-r": "node-rank",
    "-asc": "api-server-count",
    "-O": "optimization-level",
    "-cc": "compilation-config",
    "-ac": "attention-config",
}
"""Short flags of vLLM that lead to a refusal."""

# Other engines' names for what has a flag here: hints in error messages, nothing more.
SAME_THING = {
    "model-path": "--model",
    "m": "--model",
    "tokenizer-path": "--tokenizer",
    "mem-fraction-static": "--gpu-memory-utilization",
    "max-running-requests": "--max-num-seqs",
    "max-queued-requests": "--max-num-queued-reqs",
    "chunked-prefill-size": "--max-num-batched-tokens",
    "max-prefill-tokens": "--max-num-batched-tokens",
    "context-length": "--max-model-len",
    "ctx-size": "--max-model-len",
    "c": "--max-model-len",
    "page-size": "--block-size",
    "disable-radix-cache": "--no-enable-prefix-caching",
    "disable-prefix-caching": "--no-enable-prefix-caching",
    "schedule-policy": "--scheduling-policy",
    "tp-size": "--tensor-parallel-size",
    "tp": "--tensor-parallel-size",
    "random-seed": "--seed",
    "served-model": "--served-model-name",
    "alias": "--served-model-name",
    "speculative-algorithm": "--spec-method",
    "speculative-draft-model-path": "--spec-model",
    "speculative-num-draft-tokens": "--spec-tokens",
    "spec-draft-model": "--spec-model",
    "model-draft": "--spec-model",
    "md": "--spec-model",
    "spec-draft-n-max": "--spec-tokens",
    "draft-max": "--spec-tokens",
    "parallel": "--max-num-seqs",
    "np": "--max-num-seqs",
    "threads": "--num-threads",
    "t": "--num-threads",
    "api-key-file": "--api-key @FILE",
    "log-requests": "--enable-log-requests",
    "disable-speculation": "--no-speculation",
}
"""SGLang's and llama.cpp's names."""

REFUSALS: dict[str, Refusal] = {
    name: Refusal(reason, harmless) for names, reason, harmless in _GROUPS for name in names.split()
}
"""Every refused flag by its long name."""


def refusal_of(name: str) -> Refusal | None:
    """Why `name` (long, without dashes in front) is refused, or None when it is not a name we know of."""
    if name in REFUSALS:
        return REFUSALS[name]
    return next((Refusal(reason) for prefix, reason in _PREFIXES if name.startswith(prefix)), None)
