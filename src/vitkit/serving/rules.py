"""What a server lets through: under which names, with which token, and how much."""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from vitkit.errors import VitkitError

_TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,512}")  # as headers, cookies and addresses take them unchanged


@dataclass(frozen=True)
class Rules:
    """What is let through.

    Attributes:
        names: hosts, without ports, by which the server may be called; see `names_of`.
        any_address: whether it may also be called by any IP address, which no DNS entry can stand for.
        token: without which nothing is answered: in the header `Authorization: Bearer`, or in the cookie that a page
            opened with `?token=` gets; None: nobody needs one.
        open_paths: answered without the token, and under any name: they say nothing but that the server is there.
        most_bytes: of a body.
        most_held: bytes of all bodies that are being read or answered at a time.
        seconds: in which a body must have come; a large one that comes steadily has longer.
    """

    names: frozenset[str]
    any_address: bool = False
    token: str | None = field(default=None, repr=False)
    open_paths: frozenset[str] = frozenset()
    most_bytes: int = 64 * 2**20
    most_held: int = 512 * 2**20
    seconds: float = 20.0


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host.lower() == "localhost"


def rules_of(host: str, token: str | None, more: Iterable[str] = (), **limits: Any) -> Rules:
    """The rules of a server that listens at a host: on this machine alone, or for others, with a token.

    Args:
        host: a name or an address.
        token: see `Rules`; must be given where others can reach the host.
        more: other names that it is called by, as proxies and containers have them.
        limits: other fields of `Rules`.
    """
    own = {"localhost", "127.0.0.1", "::1", *(name.lower() for name in more)}
    if is_loopback(host):
        return Rules(frozenset(own | {host.lower().strip("[]")}), token=token, **limits)
    assert token, "others can reach it"
    machine = socket.gethostname().lower()
    names = own | {machine, machine.partition(".")[0], f"{machine.partition('.')[0]}.local", host.lower()}
    return Rules(frozenset(names), any_address=True, token=token, **limits)


def new_token() -> str:
    """One that nobody can guess."""
    return secrets.token_urlsafe(32)


def check_token(token: str) -> str:
    """The token, if it is long enough and can be sent as it stands.

    Raises:
        VitkitError: it is not.
    """
    if not _TOKEN.fullmatch(token):
        raise VitkitError("--token must be 16 to 512 letters, digits and . _ ~ -: the longer, the harder to guess")
    return token
