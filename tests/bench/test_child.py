import sys

import pytest

from threefold.bench.child import child_server
from threefold.errors import EngineDeadError


def command(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_ready_however_much_it_says() -> None:
    code = "print('x' * 300000); print('ready: m at http://127.0.0.1:5/v1', flush=True)\nimport time; time.sleep(60)"
    with child_server(command(code)) as url:
        assert url == "http://127.0.0.1:5"


def test_its_last_line_is_the_reason() -> None:
    code = "import sys; print('hm'); sys.exit('threefold: error: no such model')"
    with pytest.raises(EngineDeadError, match=r"before it was ready, exit code 1: threefold: error: no such model$"):
        child_server(command(code)).__enter__()


def test_patience_ends() -> None:
    with pytest.raises(EngineDeadError, match=r"not ready within 0\.2 s"):
        child_server(command("import time; time.sleep(60)"), timeout_s=0.2).__enter__()
