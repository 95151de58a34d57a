"""The default model's greedy answers, through the whole engine in float32, are those of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from threefold import LLM, SamplingParams
from threefold.models.checkpoint import open_checkpoint
from threefold.models.locate import locate_model

SPEC_BENCH = Path(__file__).parents[3] / "shared" / "data" / "spec_bench.jsonl"
NUM_QUESTIONS = 10
NUM_TOKENS = 16

# For a machine that has the repository alone: the same kinds of question.
OWN_QUESTIONS = [
    "Write two sentences about a lighthouse in winter.",
    "You are a ship's cook. Greet the crew.",
    "A train leaves at 9:10 and arrives at 11:45. How long does it take?",
    "What is 17 times 23?",
    "Write a Python function that reverses a string.",
    "List the names in this sentence: Ada met Grace in Paris.",
    "Why is the sky blue?",
    "What did the printing press change?",
    "Translate to German: The cat sleeps on the warm stone.",
    "Summarize: The council met on Monday, argued for two hours and agreed on nothing.",
]


def questions() -> list[str]:
    if not SPEC_BENCH.exists():
        return OWN_QUESTIONS
    by_category: dict[str, str] = {}
    for line in SPEC_BENCH.read_text().splitlines():
        entry = json.loads(line)
        if len(entry["turns"][0]) < 600:
            by_category.setdefault(entry["category"], entry["turns"][0])
    return list(by_category.values())[:NUM_QUESTIONS]


def oracle() -> Any:
    """The same weights in transformers' own class, float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    checkpoint = open_checkpoint(locate_model(None))
    spec = checkpoint.spec
    config = LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=spec.max_positions,
        rms_norm_eps=spec.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope.theta},
        tie_word_embeddings=spec.has_tied_head,
    )
    model = LlamaForCausalLM(config)
    state = {name: tensor.clone() for name, tensor in checkpoint.tensors(torch.float32)}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    return model.tie_weights() or model.eval()


@pytest.mark.model
@pytest.mark.timeout(300)
def test_greedy_answers_equal_transformers() -> None:
    with LLM(dtype="float32", max_model_len=2048, max_num_seqs=16, device="cpu", num_threads=1) as llm:
        prompts = [
            llm.tokenizer.encode(llm.render_chat([{"role": "user", "content": text}]), add_special_tokens=False)
            for text in questions()
        ]
        params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS)
        ours = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
    model = oracle()

    theirs = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                do_sample=False,
                max_new_tokens=NUM_TOKENS,
                eos_token_id=list(llm.info.eos_token_ids),
                pad_token_id=0,
            )
            theirs.append(ids[0, len(prompt) :].tolist())

    assert NUM_QUESTIONS == len(ours)
    assert theirs == ours
