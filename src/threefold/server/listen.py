"""The listening socket, taken before the model is loaded: a port in use is known in a moment, not in a minute."""

from __future__ import annotations

import errno
import socket

from threefold.config import ServerConfig
from threefold.errors import ConfigError


def bind_socket(config: ServerConfig) -> socket.socket | None:
    """Bind host and port, without listening yet; None when a Unix socket is configured (uvicorn opens that).

    Raises:
        ConfigError: the port is in use or not allowed, or the host does not resolve.
    """
    if config.uds is not None:
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


def url_of(config: ServerConfig, listener: socket.socket | None) -> str:
    """Where a client on this machine finds the server."""
    if listener is None:
        return f"unix:{config.uds}"
    port = listener.getsockname()[1]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(config.host, config.host)  # noqa: S104
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{'https' if config.ssl_certfile else 'http'}://{host}:{port}{config.root_path}"


def _bind_error(config: ServerConfig, error: OSError) -> str:
    place = f"{config.host}:{config.port}"
    if error.errno == errno.EADDRINUSE:
        return f"{place} is in use by another process; stop it or choose another port with --port"
    if error.errno == errno.EACCES:
        return f"{place} may not be opened by this user; ports below 1024 are reserved, choose another with --port"
    return f"cannot listen on {place}: {error.strerror}"
