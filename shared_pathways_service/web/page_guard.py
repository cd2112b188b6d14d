"""Lets requests in to a page, or refuses them: by a token, or by who can reach its socket."""

from __future__ import annotations

import dataclasses
from http import HTTPStatus
from typing import Protocol

from aiohttp import web

from shared_pathways_service.web.outer_address import OuterAddress
from shared_pathways_service.web.page_access import (
    REFUSED_HOST,
    REFUSED_TOKEN,
    cookie_name,
    is_own_host,
    is_same_origin,
    is_token,
)

__all__ = ["USER_EXPIRES", "USER_NAME", "ByPermissions", "ByToken", "PageGuard", "Refusal"]

#: Of a request whose user is known by an assertion: the user, and when the assertion is refused
#: from, in seconds since the epoch.
USER_NAME = web.RequestKey("user_name", str)
USER_EXPIRES = web.RequestKey("user_expires", float)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
    """The answer to a request that is not let in.

    Attributes:
      status: The status of HTTP.
      page: HTML that tells why.
    """

    page: str
    status: HTTPStatus = HTTPStatus.FORBIDDEN


class PageGuard(Protocol):
    """Decides about each request."""

    async def refusal(self, request: web.Request) -> Refusal | None:
        """Returns why a request is refused; None: it is let in."""

    def admit(self, request: web.Request, response: web.StreamResponse) -> None:
        """Adds to the answer what later requests of this browser are let in by."""

    def is_own(self, request: web.Request) -> bool:
        """Whether a request that acts was made by the page, and by no page of another site."""


class ByToken:
    """Lets in who shows the token, in the address at first and then as a cookie.

    Args:
      token: The token.
      outer: The address of the page at a proxy of the user; None: there is none.
    """

    def __init__(self, token: str, outer: OuterAddress | None = None) -> None:
        self._token = token
        self._outer = outer

    async def refusal(self, request: web.Request) -> Refusal | None:
        """Returns why a request is refused."""
        if not is_own_host(request.host, self._outer_host(request)):
            return Refusal(page=REFUSED_HOST)
        shown = request.query.get("token")
        if shown is None:
            shown = request.cookies.get(cookie_name(_port_of(request)))
        return None if is_token(shown, self._token) else Refusal(page=REFUSED_TOKEN)

    def admit(self, request: web.Request, response: web.StreamResponse) -> None:
        """Sets the cookie, for the path below which this browser sees the page."""
        if "token" in request.query:
            # The page itself, and no redirect: a browser that follows a link of another site sends
            # no strict cookie with the redirect, but does with the page's own requests.
            name = cookie_name(_port_of(request))
            response.set_cookie(name, self._token, httponly=True, samesite="Strict")
            # Without a path: browsers then use that below which they see the page.
            response.cookies[name]["path"] = ""

    def is_own(self, request: web.Request) -> bool:
        """Whether the origin is the host that was asked, or the proxy in front of it."""
        origin = request.headers.get("Origin")
        return any(
            host and is_same_origin(origin, host)
            for host in (request.host, self._outer_host(request))
        )

    def _outer_host(self, request: web.Request) -> str:
        return "" if self._outer is None else self._outer.host_of(_port_of(request))


class ByPermissions:
    """Lets in everybody who can open the page's Unix socket, as its directory's mode decides.

    That is a proxy of the user, which has asked the user's browser who it is.
    """

    async def refusal(self, _request: web.Request) -> Refusal | None:
        """Refuses nothing."""
        return None

    def admit(self, _request: web.Request, _response: web.StreamResponse) -> None:
        """Adds nothing."""

    def is_own(self, request: web.Request) -> bool:
        """Whether the origin is the host that the proxy was asked for."""
        return is_same_origin(request.headers.get("Origin"), request.host)


def _port_of(request: web.Request) -> int:
    transport = request.transport
    return 0 if transport is None else int(transport.get_extra_info("sockname")[1])
