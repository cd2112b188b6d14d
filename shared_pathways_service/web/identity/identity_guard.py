"""Lets in requests with the signed assertion of an authenticating proxy."""

from __future__ import annotations

import html
import logging
from http import HTTPStatus

from aiohttp import web

from shared_pathways_service.api.page_identity import PageIdentity
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.web.identity.assertions import (
    AssertionRefused,
    Visitor,
    key_id_of,
    visitor_of,
)
from shared_pathways_service.web.identity.signing_keys import SigningKeys
from shared_pathways_service.web.outer_address import OuterAddress
from shared_pathways_service.web.page_access import is_same_origin, refusal_page
from shared_pathways_service.web.page_guard import USER_EXPIRES, USER_NAME, Refusal

__all__ = ["ByIdentity"]

_log = logging.getLogger(__name__)


class ByIdentity:
    """Lets in requests with a signed assertion, at the proxy's address only.

    Args:
      identity: The assertions that are accepted.
      keys: The keys of their issuer.
      outer: The address of the page at the proxy.
    """

    def __init__(self, identity: PageIdentity, keys: SigningKeys, outer: OuterAddress) -> None:
        self._identity = identity
        self._keys = keys
        self._outer = outer

    async def refusal(self, request: web.Request) -> Refusal | None:
        """Returns why a request is refused; 401: it proves no user."""
        if request.host.lower() != self._outer.host_of(0):
            what = f"This page is served at <code>{html.escape(self._outer.url)}</code>, and under "
            what += "no other name. Its proxy must pass the Host header on unchanged."
            return Refusal(status=HTTPStatus.FORBIDDEN, page=refusal_page(what))
        try:
            visitor = await self._visitor(request)
        except AssertionRefused as error:
            return Refusal(status=HTTPStatus.UNAUTHORIZED, page=self._unproven(str(error)))
        except SharedPathwaysError as error:
            # (Its text has the address of the keys.)
            _log.warning("an assertion was not verified: %s", error)
            what = "Assertions cannot be verified now, as the keys of their issuer cannot be read. "
            what += "The log of this page has the reason."
            return Refusal(status=HTTPStatus.SERVICE_UNAVAILABLE, page=refusal_page(what))
        request[USER_NAME], request[USER_EXPIRES] = visitor.user, visitor.expires
        return None

    def admit(self, _request: web.Request, _response: web.StreamResponse) -> None:
        """Adds nothing: the proxy adds an assertion to each request."""

    def is_own(self, request: web.Request) -> bool:
        """Whether the origin is the address of the page."""
        return is_same_origin(request.headers.get("Origin"), self._outer.host_of(0))

    async def _visitor(self, request: web.Request) -> Visitor:
        shown = request.headers.getall(self._identity.header, [])
        if len(shown) != 1:
            raise AssertionRefused("there is none" if not shown else "there are several")
        assertion = shown[0]
        if self._identity.header.lower() == "authorization":
            scheme, _, assertion = assertion.partition(" ")
            if scheme.lower() != "bearer":
                raise AssertionRefused("it does not begin with Bearer")
        assertion = assertion.strip()
        key = await self._keys.key(key_id_of(assertion, self._identity))
        return visitor_of(assertion, key, self._identity)

    def _unproven(self, why: str) -> str:
        url, header = html.escape(self._outer.url), html.escape(self._identity.header)
        return refusal_page(
            "This page needs to know its users, by a signed assertion of the proxy in front of "
            f"it in the header <code>{header}</code>: {html.escape(why)}. Open the page at "
            f'<a href="{url}">{url}</a>, where you log in; reload it if your login has ended.'
        )
