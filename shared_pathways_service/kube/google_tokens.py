"""Google access tokens of the Application Default Credentials, by google-auth.

google-auth is synchronous and runs in a thread. Its requests are sent on the event loop, so that
one deadline covers all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator, Mapping
from concurrent import futures
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
import google.auth
from google.auth import credentials, exceptions, transport

from shared_pathways_service.errors import AccessDenied, SharedPathwaysError
from shared_pathways_service.kube.errors import ApiUnreachable
from shared_pathways_service.kube.http_proxies import NetworkProxy, proxy_of_environment
from shared_pathways_service.kube.proxied_connections import (
    cause_of,
    new_connector,
    proxy_options,
)
from shared_pathways_service.kube.tls import client_tls, hint_for
from shared_pathways_service.kube.tokens import Token, TokenSource
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within

__all__ = ["GoogleUser", "refresh"]

#: GKE uses the e-mail address of a service account as its name in RBAC.
_SCOPES = (
    "https://www.googleapis.com/auth/cloud-platform",
    "https://www.googleapis.com/auth/userinfo.email",
)
#: The metadata server of a machine of Google Cloud.
_METADATA_HOSTS = ("metadata.google.internal", "169.254.169.254")


class GoogleUser:
    """The user of the Application Default Credentials, with a source of access tokens."""

    def __init__(self) -> None:
        self.tokens = TokenSource(self._fetch, of="Google")
        self._found: tuple[credentials.Credentials, str] | None = None

    async def project(self) -> str:
        """Returns the credentials' project; empty if they have none. Raises as `metadata` does."""
        await self.tokens.header()
        return self._found[1] if self._found else ""

    async def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns the metadata for a gRPC call to one of Google's APIs, keys in lower case.

        Raises:
          SharedPathwaysError: There are no credentials, or no token for them.
        """
        shown = [("authorization", await self.tokens.header())]
        # A user's credentials may name the project whose quota the call uses.
        if self._found and (pays := getattr(self._found[0], "quota_project_id", None)):
            shown.append(("x-goog-user-project", str(pays)))
        return tuple(shown)

    async def _fetch(self) -> Token:
        async with _requests() as request:
            if self._found is None:
                self._found = await asyncio.to_thread(_default, request)
            await asyncio.to_thread(self._found[0].refresh, request)
        return _token(self._found[0])


async def refresh(given: credentials.Credentials) -> None:
    """Gets a new token of credentials that another library found.

    google-auth's own requests have other rules for proxies and authorities than ours.

    Raises:
      AccessDenied: Google refuses the credentials.
      ApiUnreachable: There is no answer.
    """
    async with _requests() as request:
        await asyncio.to_thread(given.refresh, request)


@contextlib.asynccontextmanager
async def _requests() -> AsyncIterator[_LoopRequest]:
    """Gives what google-auth sends its requests with, and translates its errors."""
    try:
        async with within(timeouts.GOOGLE_TOKEN), _LoopRequest() as request:
            yield request
    except (exceptions.GoogleAuthError, TimeoutError) as error:
        raise _translated(error) from error


def _default(request: transport.Request) -> tuple[credentials.Credentials, str]:
    given, project = google.auth.default(scopes=_SCOPES, request=request)
    return given, project or ""


def _token(given: credentials.Credentials) -> Token:
    until = given.expiry  # in UTC, and does not say so
    return Token(
        header=f"Bearer {given.token}",
        expires_at=until.replace(tzinfo=datetime.UTC).timestamp() if until else None,
    )


def _translated(error: Exception) -> SharedPathwaysError:
    is_passing = isinstance(error, exceptions.GoogleAuthError) and error.retryable
    if is_passing or isinstance(error, TimeoutError | exceptions.TransportError):
        cause = str(error) or f"no answer within {timeouts.GOOGLE_TOKEN.s:g} s"
        return ApiUnreachable(
            f"cannot get a token from Google: {cause}",
            server="Google",
            cause=cause,
            hint=hint_for(error),
            is_final=bool(hint_for(error)),
        )
    return AccessDenied(
        f"no credentials for Google Cloud: {error}",
        verb="connect",
        resource="Google Cloud",
        hint="gcloud auth application-default login",
    )


class _Answer(transport.Response):
    def __init__(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        self._status, self._headers, self._data = status, headers, data

    @property
    def status(self) -> int:
        return self._status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._headers

    @property
    def data(self) -> bytes:
        return self._data


class _LoopRequest(transport.Request):
    """Sends google-auth's requests, from its thread, on the event loop that created this object."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[NetworkProxy | None, aiohttp.ClientSession] = {}
        self._tls = client_tls()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        # (google-auth's thread cannot be cancelled: it may send more.)
        self._is_closed = True
        for session in self._sessions.values():
            await session.close()

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_options: Any,
    ) -> _Answer:
        proxy = _proxy_of(url)
        total_s = min(timeout or timeouts.GOOGLE_TOKEN_REQUEST.s, timeouts.GOOGLE_TOKEN_REQUEST.s)
        work = self._send(url, method, body, headers=headers, proxy=proxy, total_s=total_s)
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except (aiohttp.ClientError, OSError, RuntimeError, futures.CancelledError) as error:
            raise exceptions.TransportError(cause_of(error, proxy)) from error

    async def _send(
        self,
        url: str,
        method: str,
        body: bytes | None,
        *,
        headers: Mapping[str, str] | None,
        proxy: NetworkProxy | None,
        total_s: float,
    ) -> _Answer:
        if self._is_closed:
            raise RuntimeError("the time for a token is up")
        if proxy not in self._sessions:
            self._sessions[proxy] = aiohttp.ClientSession(connector=new_connector(proxy))
        async with self._sessions[proxy].request(
            method,
            url,
            data=body,
            headers=headers,
            ssl=self._tls,
            timeout=aiohttp.ClientTimeout(total=total_s),
            **proxy_options(proxy),
        ) as response:
            return _Answer(response.status, response.headers, await response.read())


def _proxy_of(url: str) -> NetworkProxy | None:
    # As Google's library for Go: no proxy has this machine's metadata.
    return None if urlsplit(url).hostname in _METADATA_HOSTS else proxy_of_environment(url)
