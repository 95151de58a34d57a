import os
import sys
import tempfile

import pytest

from threefold.bench.child import _so_far, child_server
from threefold.errors import EngineDeadError


def command(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_ready_however_much_it_says() -> None:
    code = "print('x' * 300000); print('ready: m at http://127.0.0.1:5/v1', flush=True)\nimport time; time.sleep(60)"
    with child_server(command(code)) as url:
        assert url == "http://127.0.0.1:5"


def test_its_last_line_is_the_reason() -> None:
    code = "import sys; print('hm', flush=True); sys.exit('threefold: error: no such model')"
    with pytest.raises(EngineDeadError, match=r"before it was ready, exit code 1: threefold: error: no such model$"):
        child_server(command(code)).__enter__()


def test_its_output_is_read_where_it_stands() -> None:
    """The reader shares the file, and must not share the place in it: at any other, lines would be written over."""
    with tempfile.TemporaryFile() as output:
        output.write(b"first line\n")
        output.flush()
        os.lseek(output.fileno(), 3, os.SEEK_SET)
        assert _so_far(output) == "first line\n"
        assert os.lseek(output.fileno(), 0, os.SEEK_CUR) == 3


def test_patience_ends() -> None:
    with pytest.raises(EngineDeadError, match=r"not ready within 0\.2 s"):
        child_server(command("import time; time.sleep(60)"), timeout_s=0.2).__enter__()
