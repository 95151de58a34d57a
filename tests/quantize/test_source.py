import json
from collections import namedtuple

import pytest

from threefold.config import ModelConfig
from threefold.errors import ConfigError, ModelLoadError
from threefold.quantize import source as sources
from threefold.quantize.source import check_output, open_source


def test_all_products_but_the_head_are_quantised(make_model):
    source = open_source(ModelConfig(model=str(make_model())))
    products = source.products()
    assert len(products) == 2 * 7
    assert products["model.layers.1.mlp.down_proj.weight"] == (64, 96)
    assert "lm_head.weight" not in products


def test_the_size_of_the_result_is_known(make_model):
    source = open_source(ModelConfig(model=str(make_model(dtype="bfloat16"))))
    weights = sum(rows * columns for rows, columns in source.products().values())
    others = 2 * 257 * 64 + 5 * 64
    for scheme, each in (("fp8", 1.0), ("awq", 0.5)):
        exact = 2 * others + each * weights
        assert exact < source.result_bytes(scheme) < 1.4 * exact


def test_the_largest_group_that_divides_is_taken(make_model):
    shape = {"hidden_size": 128, "head_dim": 32}
    groups = {"g128": (256, 128), "g64": (192, 64), "g32": (160, 32)}
    for name, (inner, size) in groups.items():
        folder = make_model(name, intermediate_size=inner, **shape)
        assert open_source(ModelConfig(model=str(folder))).group_size() == size
    with pytest.raises(ConfigError, match="use --scheme fp8"):
        open_source(ModelConfig(model=str(make_model("odd", intermediate_size=100)))).group_size()


def test_companions_come_along_and_weights_do_not(make_model, tmp_path):
    folder, to = make_model(), tmp_path / "to"
    to.mkdir()
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "LICENSE").write_text("free")
    (folder / "pytorch_model.bin").write_bytes(b"no")
    (folder / "onnx").mkdir()
    (to / "chat_template.jinja").write_text("kept")
    open_source(ModelConfig(model=str(folder))).copy_companions(to)
    names = {"LICENSE", "chat_template.jinja", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in to.iterdir()} == names
    assert (to / "chat_template.jinja").read_text() == "kept"


def test_what_is_quantised_already_is_refused(make_model, tmp_path):
    folder = make_model()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(ConfigError, match="quantised already, by gptq"):
        open_source(ModelConfig(model=str(folder)))
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="is a GGUF file"):
        open_source(ModelConfig(model=str(gguf)))
    with pytest.raises(ModelLoadError, match="no such file or folder"):
        open_source(ModelConfig(model=str(tmp_path / "nowhere")))


def test_the_folder_must_be_free(tmp_path, monkeypatch):
    check_output(tmp_path / "new" / "folder", 1000)
    (tmp_path / "empty").mkdir()
    check_output(tmp_path / "empty", 1000)
    with pytest.raises(ConfigError, match="holds files already"):
        check_output(tmp_path, 1000)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="is a file"):
        check_output(tmp_path / "file", 1000)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(sources.shutil, "disk_usage", lambda path: usage(9, 8, 900))
    with pytest.raises(ConfigError, match=r"takes about 0\.0 GB and 0\.0 GB are free"):
        check_output(tmp_path / "new", 1000)
