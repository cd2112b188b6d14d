"""Access that a program hands over with the official client (the package ``kubernetes``).

In the program, `official_client` reads the client. The result goes to the agent, over their socket
and to no other place, and `given_access` makes access of it there. Tokens change, so the agent asks
the program for the present `Login` now and then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["HandedOver", "Login"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Login:
    """The part of the access that changes with time.

    Attributes:
      header: Value of the ``Authorization`` header; empty: none.
      certificate: Of the client, with its chain, as PEM in Latin-1; empty: none.
      key: Its private key, likewise.
    """

    header: str = dataclasses.field(default="", repr=False)
    certificate: str = dataclasses.field(default="", repr=False)
    key: str = dataclasses.field(default="", repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HandedOver:
    """Access to one API server, as plain data with secrets: it is never written to a file.

    Attributes:
      server: URL, without a slash at its end.
      authority: PEM certificates, in Latin-1; empty: the system's authorities.
      verify: Whether the server's certificate is verified.
      checks_host: Whether it must have the server's name.
      server_name: That name; empty: the URL's host.
      proxy: Its URL; empty: see `is_direct`.
      proxy_headers: For an HTTP proxy.
      is_direct: Whether a proxy that the environment names does not count.
      headers: Sent with every request.
    """

    server: str
    authority: str = ""
    verify: bool = True
    checks_host: bool = True
    server_name: str = ""
    proxy: str = dataclasses.field(default="", repr=False)
    proxy_headers: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    is_direct: bool = False
    headers: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    login: Login

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HandedOver:
        """Makes it from plain data of `dataclasses.asdict`."""
        pairs = {name: tuple(map(tuple, data[name])) for name in ("headers", "proxy_headers")}
        return cls(**{**data, **pairs, "login": Login(**data["login"])})
