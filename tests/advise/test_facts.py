import json
from dataclasses import asdict, replace

import pytest

from threefold.advise.curve_executor import Host
from threefold.advise.facts import MachineFacts, read_facts
from threefold.errors import ConfigError


def test_to_disk_and_back(facts, tmp_path):
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(facts.to_dict()))
    assert read_facts(path) == facts
    measured = replace(facts, host=asdict(Host(by_rows=((1.0, 0.5), (4.0, 1.5)))))
    path.write_text(json.dumps(measured.to_dict()))
    assert read_facts(path).machine().host.ms(2) == pytest.approx(0.5 + 1.0 / 3)


def test_files_from_before_drafts_were_measured(facts):
    old = {key: value for key, value in facts.to_dict().items() if key not in ("asking", "verifying")}
    assert MachineFacts.from_dict(old) == facts


@pytest.mark.parametrize(
    "change",
    [
        {"curve": {}},
        {"curve": 3},
        {"prompts": {}},
        {"num_blocks": 0},
        {"num_blocks": "many"},
        {"host": {"speed": 3}},
        {"verifying": {"speed": 3}},
        {"asking": 3},
        {"host": {"by_rows": [[1]]}},
        {"host": {"by_rows": 5}},
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
