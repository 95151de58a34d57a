from __future__ import annotations

import socket

import pytest

from threefold.config import ServerConfig
from threefold.errors import ConfigError
from threefold.server.listen import bind_socket, url_of


def test_a_port_in_use_is_said_with_the_way_out():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port} is in use.*--port"):
            bind_socket(ServerConfig(port=port))


def test_any_free_port_is_shown_as_it_came_out():
    config = ServerConfig(port=0)
    with bind_socket(config) as listener:
        assert url_of(config, listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_urls_are_ones_that_a_client_here_can_use():
    with bind_socket(ServerConfig(host="0.0.0.0", port=0)) as listener:
        port = listener.getsockname()[1]
        assert url_of(ServerConfig(host="0.0.0.0"), listener) == f"http://127.0.0.1:{port}"
        assert url_of(ServerConfig(ssl_certfile="c", root_path="/api"), listener) == f"https://127.0.0.1:{port}/api"
    assert url_of(ServerConfig(uds="/run/x.sock"), None) == "unix:/run/x.sock"
    assert bind_socket(ServerConfig(uds="/run/x.sock")) is None


def test_a_host_that_is_none_is_said():
    with pytest.raises(ConfigError, match="does not resolve"):
        bind_socket(ServerConfig(host="no.such.host.invalid"))
