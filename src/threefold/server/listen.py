"""The listening socket, taken before the model is loaded: a port in use is known in a moment, not in a minute."""

from __future__ import annotations

import errno
import socket
import ssl
from pathlib import Path

from threefold.config import ServerConfig
from threefold.errors import ConfigError


def bind_socket(config: ServerConfig) -> socket.socket | None:
    """Bind host and port, without listening yet; None when a Unix socket is configured (uvicorn opens that).

    Raises:
        ConfigError: the place is in use or not allowed, or the host does not resolve.
    """
    if config.uds is not None:
        _try_unix_socket(config.uds)
        return None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError:
        raise ConfigError(f"--host {config.host!r} does not resolve to an address") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigError(_bind_error(config, error)) from None
    listener.setblocking(False)
    return listener


def check_tls(config: ServerConfig) -> None:
    """Look at the key and the certificate while nothing is loaded yet.

    Raises:
        ConfigError: a file is not there, or they cannot be used.
    """
    for flag, path in (("--ssl-keyfile", config.ssl_keyfile), ("--ssl-certfile", config.ssl_certfile)):
        if path is not None and not Path(path).is_file():
            raise ConfigError(f"{flag} {path}: no such file")
    if config.ssl_certfile is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password="")  # nobody is asked for one
    except OSError as error:  # ssl's own errors are of this kind
        raise ConfigError(
            f"--ssl-certfile {config.ssl_certfile} and --ssl-keyfile {config.ssl_keyfile} are no PEM certificate and "
            f"its key without a password ({error.strerror or error})"
        ) from None


def url_of(config: ServerConfig, listener: socket.socket | None) -> str:
    """Where a client on this machine finds the server."""
    if listener is None:
        return f"unix:{config.uds}"
    port = listener.getsockname()[1]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(config.host, config.host)  # noqa: S104
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{'https' if config.ssl_certfile else 'http'}://{host}:{port}{config.root_path}"


def _try_unix_socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(f"--uds {path}: cannot listen there: {error.strerror or error}") from None
            _check_left_behind(path)
            return
    Path(path).unlink()


def _check_left_behind(path: str) -> None:
    """What has the name already must be a socket that nobody listens at any more: that one is taken over."""
    if not Path(path).is_socket():
        raise ConfigError(f"--uds {path}: there is a file of this name that is no socket; choose another one")
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(path) == 0:
            raise ConfigError(f"--uds {path} is in use by another process; stop it or choose another path")


def _bind_error(config: ServerConfig, error: OSError) -> str:
    place = f"{config.host}:{config.port}"
    if error.errno == errno.EADDRINUSE:
        return f"{place} is in use by another process; stop it or choose another port with --port"
    if error.errno == errno.EACCES:
        return f"{place} may not be opened by this user; ports below 1024 are reserved, choose another with --port"
    return f"cannot listen on {place}: {error.strerror}"
