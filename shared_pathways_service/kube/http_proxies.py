"""Selects the proxy of a connection: by the rules of Go, and so of kubectl and gcloud's plug-ins.

Rules: golang.org/x/net/http/httpproxy (v0.61). Those of Python's urllib and aiohttp, and of
requests, know no CIDRs or ports in ``NO_PROXY``, and send connections to this machine to the proxy.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
from collections.abc import Mapping
from urllib.parse import SplitResult, quote, unquote, urlsplit

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.kube.tokens import basic

__all__ = ["LINK_VARIABLE", "NetworkProxy", "is_named_by", "proxy_of_environment"]

#: The proxy of `sps verify`, which counts for every server, on loopback as well.
LINK_VARIABLE = "SPS_VERIFY_PROXY"
_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
_EXPECTED = "http://HOST:PORT, https://HOST:PORT or socks5://HOST:PORT"

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkProxy:
    """A proxy on the way to a server; as text, as error messages name it.

    Attributes:
      scheme: ``http``, ``https``, ``socks5`` or ``socks5h``. The latter two are one: it is always
        the proxy that resolves the server's name.
      host: Name or address, without brackets.
      user: Empty: the proxy needs no login.
      setting: The variable, or the field of the kubeconfig, that names the proxy.
      more_headers: For an HTTP proxy, besides those of the login.
    """

    scheme: str
    host: str
    port: int
    user: str = ""
    password: str = dataclasses.field(default="", repr=False)
    setting: str
    more_headers: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)

    def __str__(self) -> str:
        return f"{self.url} (set by {self.setting})"

    @classmethod
    def parse(cls, text: str, setting: str) -> NetworkProxy:
        """Parses the URL of a proxy.

        Raises:
          InvalidRequestError: It is not one, or has another scheme.
        """
        try:
            url = urlsplit(text)
            port = url.port
        except ValueError:
            url, port = SplitResult("", "", "", "", ""), None
        if url.scheme not in _PORTS or not url.hostname:
            raise InvalidRequestError(setting, _without_login(text), _EXPECTED)
        return cls(
            scheme=url.scheme,
            host=url.hostname,
            port=_PORTS[url.scheme] if port is None else port,
            user=unquote(url.username or ""),
            password=unquote(url.password or ""),
            setting=setting,
        )

    @property
    def url(self) -> str:
        """The URL, without user and password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def url_with_login(self) -> str:
        """The URL, with user and password, for libraries that take no headers."""
        if not self.user:
            return self.url
        login = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        return self.url.replace("//", f"//{login}@", 1)

    @property
    def is_socks(self) -> bool:
        """Whether it speaks SOCKS5, and not HTTP."""
        return self.scheme.startswith("socks")

    @property
    def headers(self) -> dict[str, str]:
        """The headers for an HTTP proxy."""
        given = dict(self.more_headers)
        if not self.user:
            return given
        return {"Proxy-Authorization": basic(self.user, self.password), **given}


def proxy_of_environment(
    server: str, environment: Mapping[str, str] | None = None
) -> NetworkProxy | None:
    """Returns the proxy that the environment names for a server; None: connect directly.

    Args:
      server: URL with http:// or https://.
      environment: Variables; None: of this process.

    Raises:
      InvalidRequestError: A variable that counts for the server has an invalid value.
    """
    known = os.environ if environment is None else environment
    if link := known.get(LINK_VARIABLE):
        return NetworkProxy.parse(link, LINK_VARIABLE)
    url = urlsplit(server)
    setting, text = _first(known, f"{url.scheme}_proxy")
    if not text:
        return None
    if url.scheme == "http" and known.get("REQUEST_METHOD"):
        raise InvalidRequestError(
            setting,
            _without_login(text),
            "no proxy in a CGI program (REQUEST_METHOD is set): its clients can set HTTP_PROXY",
        )
    if _is_loopback(_host(url)) or is_named_by(_first(known, "no_proxy")[1], server):
        return None
    return NetworkProxy.parse(text if "://" in text else f"http://{text}", setting)


def is_named_by(no_proxy: str, server: str) -> bool:
    """Whether a value of NO_PROXY names the host of a server's URL."""
    url = urlsplit(server)
    host, port = _host(url), url.port or _PORTS[url.scheme]
    address = _address(host)
    return any(_matches(entry, host, address, port) for entry in no_proxy.lower().split(","))


def _first(variables: Mapping[str, str], name: str) -> tuple[str, str]:
    """Returns the variable of this name, lower or upper case, that is not empty, and its value."""
    for spelled in (name, name.upper()):
        if value := variables.get(spelled, "").strip():
            return spelled, value
    return name.upper(), ""


def _host(url: SplitResult) -> str:
    return _ascii((url.hostname or "").partition("%")[0])


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _matches(entry: str, host: str, address: _Address | None, port: int) -> bool:
    """Whether an entry of NO_PROXY, in lower case, is for a host."""
    entry = entry.strip()
    if entry == "*":
        return True
    if "/" in entry:
        return address is not None and _is_in(address, entry)
    name, only_port = _split(entry)
    if not name or only_port not in ("", str(port)):
        return False
    if (exempt := _address(name)) is not None or address is not None:
        return exempt == address
    # *.x and .x are for hosts below x, and x is for x as well.
    bare = name[1:] if name.startswith("*.") else name
    domain = _ascii(bare.removeprefix("."))
    return host.endswith(f".{domain}") or (host == domain and not bare.startswith("."))


def _is_in(address: _Address, network: str) -> bool:
    try:
        return re.fullmatch(r".*/\d+", network) is not None and address in ipaddress.ip_network(
            network, strict=False
        )
    except ValueError:
        return False


def _split(entry: str) -> tuple[str, str]:
    """Returns the host and the port of HOST, HOST:PORT, [IPv6]:PORT or IPv6; empty: no port."""
    found = re.fullmatch(
        r"\[(?P<v6>[^\[\]]*)\]:(?P<v6port>[^:]*)|(?P<host>[^:]*):(?P<port>[^:]*)", entry
    )
    if found is None:
        return entry, ""
    return found["v6"] or found["host"] or "", found["v6port"] or found["port"] or ""


def _address(host: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    # (An IPv4 address that is written as an IPv6 one is the same host.)
    return getattr(address, "ipv4_mapped", None) or address


def _ascii(host: str) -> str:
    try:
        return host.encode("idna").decode() if not host.isascii() else host
    except UnicodeError:
        return host


def _without_login(text: str) -> str:
    return re.sub(r"^(\w+://)?.*@", r"\1***@", text)
