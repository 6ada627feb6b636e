"""Ports of this machine: which are free, and why one is not. Holds none."""

import contextlib
import socket


def free_ports(count: int) -> list[int]:
    """Return `count` different loopback ports that are free now; another process may take one before it is used."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def why_busy(host: str, port: int) -> str:
    """Return why a port cannot be listened on, or nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a closed connection is no listener
        try:
            trial.bind((host, port))
            trial.listen(1)
        except OSError as error:
            return error.strerror or str(error)
    return ""


def accepts(host: str, port: int) -> bool:
    """Return whether something accepts connections there now."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=0.2):
        return True
    return False
