"""Where a browser finds a page that a proxy of the user serves, below a path or by another name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from urllib.parse import urlsplit

from shared_pathways_service.api.page_identity import is_page_url
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["OuterAddress", "outer_address"]

#: What VS Code in a browser sets in its terminals: an address with this mark for the port.
_VSCODE = "VSCODE_PROXY_URI"
_MARKS = ("{{port}}", "{port}")


@dataclasses.dataclass(frozen=True)
class OuterAddress:
    """The address of a page at the user's proxy.

    Attributes:
      url: It ends with a slash; ``{port}`` in it stands for the port of the page.
    """

    url: str

    def of_port(self, port: int) -> str:
        """Returns the address for the page's port."""
        return self.url.replace("{port}", str(port))

    def host_of(self, port: int) -> str:
        """Returns the host, with its port if the address has one, as browsers send it."""
        parts = urlsplit(self.of_port(port))
        host = parts.netloc.rpartition("@")[2].lower()
        usual = {"http": ":80", "https": ":443"}[parts.scheme]
        return host.removesuffix(usual)


def outer_address(named: str | None, environ: Mapping[str, str]) -> OuterAddress | None:
    """Returns the address at which a proxy of the user serves the page.

    Args:
      named: What the user passed; None: nothing.
      environ: This process's variables.

    Returns:
      None: no proxy is known.

    Raises:
      InvalidRequestError: What the user passed is not the address of a page.
    """
    if named is None:
        # (It may be relative, and then tells nothing.)
        found = environ.get(_VSCODE, "")
        return _checked(found) if found.startswith(("http://", "https://")) else None
    address = _checked(named)
    if address is None:
        expected = "an address such as https://hub.example.org/user/ada/proxy/{port}/"
        raise InvalidRequestError("--behind", named, expected)
    return address


def _checked(url: str) -> OuterAddress | None:
    for mark in _MARKS:
        url = url.replace(mark, "{port}")
    if not is_page_url(url.replace("{port}", "1")):
        return None
    return OuterAddress(url if url.endswith("/") else f"{url}/")
