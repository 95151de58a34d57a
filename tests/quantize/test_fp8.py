import json

import pytest
import torch
import transformers
from safetensors.torch import load_file

from threefold.config import ModelConfig
from threefold.quantize.fp8 import write_fp8
from threefold.quantize.source import open_source

NAME = "model.layers.1.self_attn.k_proj.weight"


@pytest.fixture
def written(make_model, tmp_path):
    folder, to = make_model(dtype="bfloat16"), tmp_path / "to"
    to.mkdir()
    told = []
    size = write_fp8(open_source(ModelConfig(model=str(folder))), to, lambda done, num: told.append((done, num)))
    assert told == [(at, 14) for at in range(1, 15)]
    before, after = load_file(folder / "model.safetensors"), load_file(to / "model.safetensors")
    assert size == sum(tensor.nbytes for tensor in after.values())
    return to, before, after


def test_weights_are_e4m3_with_a_scale_an_output(written):
    _, before, after = written
    weight, scale = after[NAME], after[f"{NAME}_scale"]
    assert (weight.dtype, weight.shape) == (torch.float8_e4m3fn, (32, 64))
    assert (scale.dtype, scale.shape) == (torch.float32, (32, 1))
    assert (weight.float().abs().amax(dim=1) == 448).all()
    plain = before[NAME].bfloat16().float()
    error = (weight.float() * scale - plain).abs()
    bound = torch.maximum(plain.abs() / 16, scale * 2**-9)  # half of e4m3's step: three bits, or the least number's
    assert (error <= bound * 1.001).all()


def test_what_is_no_product_stays(written):
    _, before, after = written
    for name in ("model.embed_tokens.weight", "lm_head.weight", "model.layers.0.input_layernorm.weight"):
        assert torch.equal(after[name], before[name].bfloat16())
    assert set(after) - set(before) == {f"{name}_scale" for name in before if "_proj" in name}


def test_the_configuration_says_what_was_done(written):
    to, *_ = written
    config = json.loads((to / "config.json").read_text())
    assert config["hidden_size"] == 64
    said = config["quantization_config"]
    assert (said["quant_method"], said["format"], said["ignore"]) == (
        "compressed-tensors", "float-quantized", ["lm_head"],
    )  # fmt: skip
    group = said["config_groups"]["group_0"]
    assert (group["weights"]["strategy"], group["input_activations"]["dynamic"]) == ("channel", True)
    assert (to / "tokenizer.json").is_file()


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
def test_transformers_reads_it(written):
    to, _, after = written
    config = transformers.CompressedTensorsConfig(run_compressed=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(to, quantization_config=config, dtype=torch.float32)
    read = model.state_dict()
    for name in (name for name in after if name.endswith("_proj.weight")):
        torch.testing.assert_close(read[name], after[name].float() * after[f"{name}_scale"], rtol=1e-6, atol=0)
