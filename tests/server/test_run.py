"""A server's life in a process of its own, with a fake engine: signals, drain, death, refusals to start."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

SCRIPT = """
import asyncio, importlib.util, sys
spec = importlib.util.spec_from_file_location("fakes", sys.argv[1])
fakes = importlib.util.module_from_spec(spec)
sys.modules["fakes"] = fakes
spec.loader.exec_module(fakes)
from threefold.config import EngineConfig, ServerConfig
from threefold.server.run import run_server

class Client(fakes.FakeClient):
    delay_s = 0.01

    async def drain(self, timeout_s):
        async def idle():
            while self.num_open:
                await asyncio.sleep(0.01)
        try:
            await asyncio.wait_for(idle(), timeout_s)
        except TimeoutError:
            self.fault_after = 0  # what still runs ends with an error frame
            self.fault = fakes.EngineDeadError("aborted")
        return 0

async def start(config):
    client = Client()
    client.delay_s = 0.01
    if "--dies" in sys.argv:
        def die():
            client.is_alive = False
            client.fault_after = 0
            client.fault = fakes.EngineDeadError("gone")
        asyncio.get_running_loop().call_later(1.0, die)
    return client

config = ServerConfig(port=int(sys.argv[2]), shutdown_timeout_s=float(sys.argv[3]), log_stats_interval_s=0.2)
raise SystemExit(run_server(EngineConfig(), config, start_client=start))
"""


@contextlib.contextmanager
def server(timeout_s=10.0, *flags):
    fakes = str(Path(__file__).with_name("conftest.py"))
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, fakes, "0", str(timeout_s), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        lines = []
        while not (lines and lines[-1].startswith("try: ")):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            lines.append(line)
        yield process, lines, next(word for word in lines[-1].split() if word.startswith("http://")).split("/v1/")[0]
    finally:
        process.kill()
        process.communicate()


def ask(url, max_tokens):
    body = {"prompt": "a", "max_tokens": max_tokens, "stream": True}
    return httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30)


def test_the_start_screen_and_a_drain():
    with server() as (process, lines, url):
        assert lines[0].startswith("num_blocks 100: ")
        assert any(line.startswith(f"ready: fake-model at {url}/v1") for line in lines)
        curl = lines[-1].removeprefix("try: ")
        assert json.loads(curl.split("-d '")[1].rstrip().rstrip("'"))["messages"]
        with ask(url, 60) as reply:
            events = reply.iter_lines()
            next(events)
            process.send_signal(signal.SIGTERM)
            while httpx.get(f"{url}/health").status_code == 200:
                time.sleep(0.01)
            assert httpx.post(f"{url}/v1/completions", json={"prompt": "a"}).status_code == 503
            rest = list(events)
        assert rest[-2] == "data: [DONE]" or rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in "".join(rest)
        assert process.wait(10) == 0
        assert "Avg generation throughput" in process.stderr.read()


def test_a_drain_has_an_end():
    with server(0.3) as (process, _, url):
        with ask(url, 4000) as reply:
            events = reply.iter_lines()
            next(events)
            process.send_signal(signal.SIGINT)
            rest = "".join(events)
        assert '"error"' in rest
        assert rest.endswith("data: [DONE]")
        assert process.wait(10) == 0


def test_a_second_signal_is_obeyed_at_once():
    with server(60.0) as (process, _, url), ask(url, 4000) as reply:
        events = reply.iter_lines()
        next(events)
        process.send_signal(signal.SIGINT)
        while httpx.get(f"{url}/health").status_code == 200:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


def test_the_engines_death_ends_streams_and_the_process():
    with server(10.0, "--dies") as (process, _, url):
        with ask(url, 4000) as reply:
            text = "".join(reply.iter_lines())
        assert '"type":"server_error"' in text
        assert text.endswith("data: [DONE]")
        assert process.wait(10) == 1


def test_an_idle_server_leaves_promptly():
    with server() as (process, _, url), httpx.Client() as kept_alive:
        kept_alive.get(f"{url}/health")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


@pytest.fixture
def quiet_logging():
    """run_server takes the process's loggers; give them back."""
    loggers = [logging.getLogger(name) for name in ("threefold", "uvicorn")]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def test_a_port_in_use_is_refused_before_the_engine_starts(quiet_logging):
    from threefold.config import EngineConfig, ModelConfig, ServerConfig
    from threefold.errors import ConfigError
    from threefold.server.run import run_server

    async def start(config):
        raise AssertionError("the engine must not be started")

    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(ConfigError, match="in use"):
        run_server(EngineConfig(), ServerConfig(port=other.getsockname()[1]), start_client=start)
    with pytest.raises(ConfigError, match="no such file"):
        run_server(EngineConfig(), ServerConfig(port=0, ssl_keyfile="/nowhere/key.pem"), start_client=start)
    with pytest.raises(ConfigError, match="--chat-template"):
        engine = EngineConfig(model=ModelConfig(chat_template="/nowhere/template.jinja"))
        run_server(engine, ServerConfig(port=0), start_client=start)
    with pytest.raises(ConfigError, match=r"--chat-template: is no valid Jinja template: line 1: unexpected"):
        run_server(EngineConfig(model=ModelConfig(chat_template="{{ oh")), ServerConfig(port=0), start_client=start)
    with pytest.raises(ConfigError, match=r"--uds /nowhere/x.sock: cannot listen there: No such file"):
        run_server(EngineConfig(), ServerConfig(uds="/nowhere/x.sock"), start_client=start)


def test_what_answers_requests_is_imported_once_the_engine_is_on_its_way():
    program = """
import sys
from threefold.config import EngineConfig, ServerConfig
from threefold.errors import ConfigError
from threefold.server.run import run_server

async def start(config):
    print([name for name in ("fastapi", "pydantic", "jinja2", "torch", "numba") if name in sys.modules])
    raise ConfigError("no engine")

try:
    run_server(EngineConfig(), ServerConfig(port=0), start_client=start)
except ConfigError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "[]\nno engine\n"
