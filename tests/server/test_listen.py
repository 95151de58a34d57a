from __future__ import annotations

import socket

import pytest

from threefold.config import ServerConfig
from threefold.errors import ConfigError
from threefold.server.listen import bind_socket, check_tls, url_of


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


def test_a_unix_socket_is_opened_by_the_server_itself(tmp_path):
    path = tmp_path / "x.sock"
    assert bind_socket(ServerConfig(uds=str(path))) is None
    assert not path.exists(), "a trial leaves nothing behind"


def test_a_socket_that_a_server_left_behind_is_no_hindrance(tmp_path):
    path = tmp_path / "x.sock"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
    assert bind_socket(ServerConfig(uds=str(path))) is None
    assert path.is_socket(), "it is taken over when the server listens"


def test_a_unix_socket_in_use_is_said(tmp_path):
    path = tmp_path / "x.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(ConfigError, match=r"--uds .*x.sock is in use by another process"):
            bind_socket(ServerConfig(uds=str(path)))


def test_a_unix_socket_that_cannot_be_is_said_before_a_model_is_loaded(tmp_path):
    (tmp_path / "file").write_text("precious")
    wrong = {
        "no/such/folder/x.sock": "No such file or directory",
        "file": "there is a file of this name",
        "x" * 200: "too long",
    }
    for name, reason in wrong.items():
        with pytest.raises(ConfigError, match=f"--uds .*{reason}"):
            bind_socket(ServerConfig(uds=str(tmp_path / name)))
    assert (tmp_path / "file").read_text() == "precious"


def test_keys_that_are_none_are_said_before_a_model_is_loaded(tmp_path):
    check_tls(ServerConfig())
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    with pytest.raises(ConfigError, match="--ssl-certfile /nowhere: no such file"):
        check_tls(ServerConfig(ssl_keyfile=str(junk), ssl_certfile="/nowhere"))
    with pytest.raises(ConfigError, match="are no PEM certificate and its key without a password"):
        check_tls(ServerConfig(ssl_keyfile=str(junk), ssl_certfile=str(junk)))


def test_a_host_that_is_none_is_said():
    with pytest.raises(ConfigError, match="does not resolve"):
        bind_socket(ServerConfig(host="no.such.host.invalid"))
