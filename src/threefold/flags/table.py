"""The flags that work: one row each, mapped to the config field it sets. Knows configs by their field names only.

Names and meanings are those that users of vLLM type; a different default or limit is said in the row's help.
Flags of other engines that are not built stand in elsewhere.py.
"""

from __future__ import annotations

from threefold.flags.flag import Flag
from threefold.flags.targets import SERVED, targets_of
from threefold.flags.values import (
    built_choice,
    choice,
    integer,
    keys,
    none_or,
    number,
    one,
    only_on,
    opposite,
    switch,
    text,
    words,
)

_QUANTIZATIONS = (
    "bitsandbytes fp_quant hqq inc int8 modelopt modelopt_fp4 moe_wna16 mxfp4 mxfp8 nvfp4 quark torchao experts_int8 "
    "auto-round petit_nvfp4 rtn"
)
_KV_DTYPES = "fp8_e5m2 fp8_inc fp8_per_token_head int8_per_token_head int4_per_token_head bfloat16 float16"
_LOAD_FORMATS = (
    "pt bin npcache tensorizer runai_streamer runai_streamer_sharded sharded_state bitsandbytes mistral hf "
    "fastsafetensors"
)

MODEL_FLAGS = (
    Flag("model", "model.model", text,
         "folder, GGUF file or hub id; also given without a flag (SmolLM2-135M-Instruct)", metavar="MODEL"),
    Flag("served-model-name", "model.served_model_names", one, "names the API answers to; the first is shown",
         kind="list", metavar="NAME"),
    Flag("tokenizer", "model.tokenizer", text, "folder or tokenizer.json in place of the model's own", metavar="PATH"),
    Flag("revision", "model.revision", text, "hub revision", metavar="REV"),
    Flag("dtype", "model.dtype",
         choice("auto", "bfloat16", "float16", "float32", half="float16", float="float32", bf16="bfloat16",
                fp16="float16", fp32="float32"),
         "auto, bfloat16, float16 or float32", metavar="DTYPE"),
    Flag("quantization", "model.quantization",
         none_or(built_choice("none", "fp8", "fbgemm_fp8", "compressed-tensors", "awq", "gptq", "gguf",
                              known=_QUANTIZATIONS, awq_marlin="awq", gptq_marlin="gptq"), "none"),
         "weight quantisation; none = as the checkpoint says, fp8 = that too of a plain one, made while loading",
         aliases=("-q",), metavar="SCHEME"),
    Flag("quantize-embeddings", "model.quantize_embeddings", choice("auto", "none"),
         "auto = embedding and output head in 8 bits too where products are quantised, on a card or while loading; "
         "none = as the checkpoint has them", metavar="WHEN"),
    Flag("load-format", "model.load_format", built_choice("auto", "safetensors", "gguf", "dummy", known=_LOAD_FORMATS),
         "auto, safetensors, gguf, or dummy for seeded random weights", metavar="FORMAT"),
    Flag("max-model-len", "model.max_model_len", none_or(integer(1), "auto", "-1"),
         "most tokens a request may have, prompt and answer; 32k = 32,000, 32K = 32,768, auto = what fits (auto)",
         metavar="TOKENS"),
    Flag("seed", "model.seed", integer(-(2**63), 2**63 - 1), "seed of dummy weights and of requests that bring none",
         metavar="N"),
    Flag("generation-config", "model.generation_config", text,
         "auto = sampling defaults of the model, vllm = those of the API, or a folder", metavar="WHICH"),
    Flag("chat-template", "model.chat_template", text, "Jinja file or text in place of the model's own",
         metavar="FILE"),
)  # fmt: skip

CACHE_FLAGS = (
    Flag("block-size", "cache.block_size", integer(1, 1024), "tokens a KV block", metavar="TOKENS"),
    Flag("enable-prefix-caching", "cache.enable_prefix_caching", switch, "share the KV of equal prefixes",
         kind="switch"),
    Flag("gpu-memory-utilization", "cache.gpu_memory_utilization", number(0, 1, is_low_open=True),
         "share of the device's memory to use; on a CPU, of what is free", metavar="SHARE"),
    Flag("kv-cache-memory-bytes", "cache.kv_cache_memory_bytes", integer(1), "exact size of the KV cache; 4G = 4 GiB",
         metavar="BYTES"),
    Flag("num-gpu-blocks-override", "cache.num_blocks", integer(1), "exact number of KV blocks", metavar="N"),
    Flag("kv-cache-dtype", "cache.kv_cache_dtype", built_choice("auto", "fp8", "fp8_e4m3", known=_KV_DTYPES),
         "auto = the model's dtype; fp8 (fp8_e4m3) = half the memory, on a card",
         metavar="DTYPE"),
)  # fmt: skip

SCHEDULER_FLAGS = (
    Flag("max-num-seqs", "scheduler.max_num_seqs", integer(1),
         "most requests that run at once (64 on a CPU, 256 on a card)", metavar="N"),
    Flag("max-num-batched-tokens", "scheduler.max_num_batched_tokens", integer(1),
         "most tokens in a step (512 on a CPU, 8192 on a card)", metavar="TOKENS"),
    Flag("scheduling-policy", "scheduler.policy", choice("fcfs", "priority"), "fcfs, or priority: smaller first",
         metavar="POLICY"),
    Flag("long-prefill-token-threshold", "scheduler.long_prefill_token_threshold", integer(0),
         "most tokens of one prompt in a step; 0 = the step's budget alone decides", metavar="TOKENS"),
    Flag("max-num-queued-reqs", "scheduler.max_num_queued_reqs", integer(1),
         "waiting requests beyond which new ones are refused with 503 (four times max-num-seqs, at least 256)",
         metavar="N"),
    Flag("enable-chunked-prefill", "",
         only_on("a prompt and an answer are one case here, fed as the step's budget allows"), "always on",
         kind="switch", no_effect="silent"),
)  # fmt: skip

SPECULATION_FLAGS = (
    Flag("speculative-config", "speculation.", text,
         'one JSON object, such as {"method": "ngram", "num_speculative_tokens": 5}; also --speculative-config.KEY',
         kind="json", aliases=("-sc",), metavar="JSON"),
    Flag("spec-method", "speculation.method", text,
         "ngram, suffix, draft_model, several with commas, auto or none (ngram)",
         aliases=("--speculative-method",), metavar="METHOD"),
    Flag("spec-model", "speculation.model", text, "folder, GGUF file or hub id of the draft model",
         aliases=("--speculative-model",), metavar="MODEL"),
    Flag("spec-tokens", "speculation.num_speculative_tokens", integer(0), "most drafts a row and step; 0 = off",
         aliases=("--num-speculative-tokens",), metavar="N"),
    Flag("ngram-prompt-lookup-max", "speculation.prompt_lookup_max", integer(1), "longest n-gram looked for",
         metavar="N"),
    Flag("ngram-prompt-lookup-min", "speculation.prompt_lookup_min", integer(1), "shortest n-gram that drafts",
         metavar="N"),
    Flag("speculation", "speculation.is_on", switch, "--no-speculation turns every drafter off (on)", kind="switch"),
)  # fmt: skip

DEVICE_FLAGS = (
    Flag("device", "device.device", choice("auto", "cpu", "cuda"), "auto, cpu or cuda", metavar="DEVICE"),
    Flag("num-threads", "device.num_threads", integer(1), "CPU threads (all cores of this process)",
         metavar="N"),
    Flag("enforce-eager", "device.enforce_eager", switch,
         "capture no graphs on a card: slower; saves their memory and the seconds of capturing", kind="switch"),
    Flag("tensor-parallel-size", "parallel.tensor_parallel_size", integer(1),
         "cards that one model is spread over; only 1 is built so far", aliases=("-tp",), metavar="N"),
)  # fmt: skip

NO_EFFECT_FLAGS = (
    Flag("async-scheduling", "", switch, "overlap planning with the forward pass", kind="switch",
         no_effect="the loop decides by itself; there is nothing to switch"),
    Flag("enable-request-id-headers", "", switch, "send X-Request-Id", kind="switch", no_effect="always on"),
    Flag("disable-uvicorn-access-log", "", switch, "no access log", kind="switch",
         no_effect="there is no access log; --enable-log-requests gives one line a request"),
    Flag("disable-log-requests", "", switch, "do not log requests", kind="switch",
         no_effect="requests are logged only with --enable-log-requests"),
    Flag("disable-custom-all-reduce", "", switch, "use NCCL's own all-reduce", kind="switch",
         no_effect="there is no other"),
    Flag("swap-space", "", number(0), "host memory for swapped blocks", metavar="GIB",
         no_effect="preempted requests are recomputed, never swapped"),
)  # fmt: skip

SERVER_FLAGS = (
    Flag("host", "server.host", text, "address to listen on; 0.0.0.0 = every interface", metavar="ADDRESS"),
    Flag("port", "server.port", integer(0, 65535), "TCP port; 0 = any free one", metavar="PORT"),
    Flag("uds", "server.uds", text, "Unix socket in place of host and port", metavar="PATH"),
    Flag("api-key", "server.api_keys", keys, "accepted keys, or @FILE with one a line; also $THREEFOLD_API_KEY",
         kind="list", metavar="KEY"),
    Flag("allowed-origins", "server.allowed_origins", words, "CORS origins", kind="list", metavar="ORIGIN"),
    Flag("root-path", "server.root_path", text, "path prefix behind a proxy", metavar="PATH"),
    Flag("ssl-keyfile", "server.ssl_keyfile", text, "TLS key", metavar="FILE"),
    Flag("ssl-certfile", "server.ssl_certfile", text, "TLS certificate", metavar="FILE"),
    Flag("max-body-bytes", "server.max_body_bytes", integer(1024), "largest request body, more is answered 413",
         metavar="BYTES"),
    Flag("max-header-bytes", "server.max_header_bytes", integer(1024), "largest request head, more is answered 431",
         aliases=("--h11-max-incomplete-event-size",), metavar="BYTES"),
    Flag("shutdown-timeout", "server.shutdown_timeout_s", number(0),
         "seconds that running requests may take after SIGTERM", metavar="SECONDS"),
    Flag("overload-status", "server.overload_status", lambda value: int(choice("503", "429")(value)),
         "status of a refused request when the queue is full: 503 or 429", metavar="STATUS"),
    Flag("stream-interval", "server.stream_interval", integer(1), "tokens gathered before a stream's next chunk",
         metavar="TOKENS"),
    Flag("sse-keep-alive-interval", "server.sse_keep_alive_interval_s", number(0),
         "seconds of silence after which a stream gets a comment, for proxies; 0 = never", metavar="SECONDS"),
    Flag("enable-log-requests", "server.enable_log_requests", switch, "one log line a request, never its text",
         kind="switch"),
    Flag("log-format", "server.log_format", choice("text", "json"), "text or json", metavar="FORMAT"),
    Flag("uvicorn-log-level", "server.log_level",
         choice("debug", "info", "warning", "error", trace="debug", critical="error"),
         "least level of the server's log lines", aliases=("--log-level",), metavar="LEVEL"),
    Flag("log-stats-interval", "server.log_stats_interval_s", number(0), "seconds between throughput lines; 0 = none",
         metavar="SECONDS"),
    Flag("disable-log-stats", "server.log_stats_interval_s", lambda value: 0.0 if switch(value) else 10.0,
         "no throughput lines", kind="switch"),
    Flag("enable-prompt-tokens-details", "server.enable_prompt_tokens_details", switch,
         "report cached prompt tokens in usage", kind="switch"),
    Flag("slo", "slo.targets", targets_of(SERVED),
         "latency targets to hold, ms: ttft:500,tpot:50, or one of them; who would miss them is refused with 503",
         kind="list", metavar="TARGET"),
    Flag("record", "server.record", text, "append a line for every answer to a file that profile and advise read",
         metavar="FILE"),
    Flag("record-content", "server.record_content", choice("text", "hashes", "none"),
         "of prompts and answers, record text (as token ids), hashes that tell what repeats, or none",
         metavar="WHAT"),
    Flag("disable-fastapi-docs", "server.enable_docs", opposite, "do not serve /docs and /openapi.json", kind="switch"),
)  # fmt: skip

CONFIG_FLAG = Flag("config", "config", text, "YAML file of flags; what the command line says wins", metavar="FILE.yaml")

ENGINE_FLAGS = MODEL_FLAGS + CACHE_FLAGS + SCHEDULER_FLAGS + SPECULATION_FLAGS + DEVICE_FLAGS + NO_EFFECT_FLAGS
GROUPS = (
    ("Server", SERVER_FLAGS),
    ("Model", MODEL_FLAGS),
    ("KV cache", CACHE_FLAGS),
    ("Scheduler", SCHEDULER_FLAGS),
    ("Speculation", SPECULATION_FLAGS),
    ("Device", DEVICE_FLAGS),
    ("Accepted, without effect here", NO_EFFECT_FLAGS),
    ("File", (CONFIG_FLAG,)),
)
"""Headings of `--help`, in order."""
ENGINE_GROUPS = tuple(group for group in GROUPS if group[0] not in ("Server", "File"))
"""Those of a command that builds an engine and serves nobody."""
