import json

import pytest

from threefold.advise.facts import MachineFacts, read_facts
from threefold.errors import ConfigError


def test_to_disk_and_back(facts, tmp_path):
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(facts.to_dict()))
    assert read_facts(path) == facts


@pytest.mark.parametrize(
    "change",
    [
        {"curve": {}},
        {"curve": 3},
        {"prompts": {}},
        {"num_blocks": 0},
        {"num_blocks": "many"},
        {"host": {"speed": 3}},
        {"unknown": 1},
        {"notes": 5},
    ],
)
def test_nonsense_is_one_clear_line(facts, change):
    with pytest.raises(ConfigError):
        MachineFacts.from_dict({**facts.to_dict(), **change})


@pytest.mark.parametrize("content", ["", "[]", "{", "{}"])
def test_files_that_hold_something_else(tmp_path, content):
    path = tmp_path / "machine.json"
    path.write_text(content)
    with pytest.raises(ConfigError):
        read_facts(path)
    with pytest.raises(ConfigError, match="cannot read it"):
        read_facts(tmp_path / "nothing")
