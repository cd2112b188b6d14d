"""Sends files from a submitter to the pods of its job, by way of an object store."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import aiohttp
import tenacity

from shared_pathways_service.errors import InvalidRequestError, SharedPathwaysError
from shared_pathways_service.kube.google_tokens import refresh
from shared_pathways_service.kube.http_proxies import NetworkProxy, proxy_of_environment
from shared_pathways_service.kube.proxied_connections import cause_of, new_connector
from shared_pathways_service.kube.tls import client_tls, hint_for
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within

__all__ = ["FilesNotReceivedError", "download", "upload"]

_CHUNK: Final = 1 << 20
_SUFFIX: Final = ".tar.gz"
#: HTTP: the caller may not read the object, or it does not exist. (401 is also the answer where no
#: credentials were found, which may come.)
_FINAL_CODES: Final = (403, 404)
_INSTALL: Final = "the extra `buckets` of this package has what reads and writes gs:// and s3://"
_GRANT: Final = "the identity of the pod, or variables that --env names, must allow it"
#: These log each error that they raise.
for _library in ("gcsfs", "s3fs"):
    logging.getLogger(_library).addHandler(logging.NullHandler())


class _NoAnswerError(Exception):
    """An object store did not answer."""


class FilesNotReceivedError(Exception):
    """A pod did not get its files.

    Attributes:
      is_final: Whether trying again would not help.
    """

    def __init__(self, message: str, *, is_final: bool) -> None:
        super().__init__(message)
        self.is_final = is_final


async def upload(
    archive: Path, bucket: str, tell: Callable[[str], object] = lambda _progress: None
) -> str:
    """Uploads an archive, and returns its URL, which contains the digest of its content.

    One that is there already is replaced, so that a rule of the bucket that deletes old objects
    counts from now.

    Args:
      archive: The file.
      bucket: ``gs://NAME[/PATH]`` or ``s3://NAME[/PATH]``.
      tell: Called with the progress.

    Raises:
      InvalidRequestError: It cannot be uploaded; the field is ``workdir_bucket``.
    """
    digest = await asyncio.to_thread(_digest, archive)
    url = f"{bucket.rstrip('/')}/{digest}{_SUFFIX}"
    try:
        async with within(timeouts.SENT_FILES_COPY), _opened(url) as (store, path):
            callback = _progress(tell, url)
            # (fsspec's, documented)
            await store._put_file(str(archive), path, callback=callback)  # noqa: SLF001
    except Exception as error:
        raise InvalidRequestError(
            "workdir_bucket",
            bucket,
            f"a bucket that answers, and in which this user can replace objects ({_why(error)})",
            hint=_INSTALL if isinstance(error, ImportError) else _hint(error),
        ) from error
    return url


async def download(url: str, to: Path) -> None:
    """Downloads what `upload` has uploaded, and checks its content.

    Raises:
      FilesNotReceivedError: It cannot be read, or has another content.
    """
    try:
        async with within(timeouts.SENT_FILES_COPY):
            await _downloaded(url, to)
    except Exception as error:
        hint = _INSTALL if isinstance(error, ImportError) else _hint(error) or _GRANT
        raise FilesNotReceivedError(
            f"the working directory cannot be read from {url}: {_why(error)}; {hint}",
            is_final=_is_final(error),
        ) from error
    digest = await asyncio.to_thread(_digest, to)
    if not url.endswith(f"/{digest}{_SUFFIX}"):
        raise FilesNotReceivedError(
            f"{url} is not the working directory that was sent: its SHA-256 is {digest}",
            is_final=True,
        )


@tenacity.retry(
    stop=lambda tries: (tries.seconds_since_start or 0.0) >= timeouts.SENT_FILES_TRIES.s,
    wait=tenacity.wait_exponential(max=10.0),
    retry=tenacity.retry_if_exception(lambda error: not _is_final(error)),
    reraise=True,
)
async def _downloaded(url: str, to: Path) -> None:
    async with _opened(url) as (store, path):
        await store._get_file(path, str(to))  # noqa: SLF001


@contextlib.asynccontextmanager
async def _opened(url: str) -> AsyncIterator[tuple[Any, str]]:
    """Gives fsspec's asynchronous file system of a URL, and the path in it."""
    scheme, _, path = url.partition("://")
    store = _google_store() if scheme == "gs" else _amazon_store()
    proxy = await _prepared(store) if scheme == "gs" else None
    # (s3fs documents the first name, gcsfs has the second.)
    set_session = getattr(store, "set_session", None) or store._set_session  # noqa: SLF001
    session = await set_session()
    try:
        yield store, path
    except aiohttp.ClientError as error:
        raise _NoAnswerError(cause_of(error, proxy)) from error
    finally:
        await session.close()


async def _prepared(store: Any) -> NetworkProxy | None:
    """Lets gcsfs trust, and go through, what all our connections do; returns its proxy.

    By itself its tokens and its files have different authorities, and its files no proxy.
    """
    given = store.credentials.credentials  # None: none were found
    if given is not None and not given.valid:
        await refresh(given)
    proxy = proxy_of_environment(store._location)  # noqa: SLF001
    if getattr(store, "_use_client_cert", False):
        return None  # (It connects with a certificate of the machine, in its own way.)
    store.session_kwargs = {"connector": new_connector(proxy, tls=client_tls())}
    if proxy is not None and not proxy.is_socks:
        store.session_kwargs["proxy"] = proxy.url_with_login
    return proxy


def _progress(tell: Callable[[str], object], url: str) -> Any:
    """Returns fsspec's callback, which tells how much is uploaded after each piece of some MiB."""
    # Imported here: it is of an extra.
    from fsspec.callbacks import Callback  # noqa: PLC0415

    def show(size: int | None, value: int, **_: object) -> None:
        tell(f"uploading to {url}: {value >> 20} of {(size or 0) >> 20} MiB")

    return Callback(hooks={"tell": show})


def _google_store() -> Any:
    # Imported here: they are an extra, and slow to load.
    # (What fsspec would choose asks for the bucket's kind by gRPC, before each call.)
    from gcsfs.core import GCSFileSystem  # noqa: PLC0415

    return GCSFileSystem(asynchronous=True, skip_instance_cache=True)


def _amazon_store() -> Any:
    from s3fs import S3FileSystem  # noqa: PLC0415

    return S3FileSystem(asynchronous=True, skip_instance_cache=True)


def _is_final(error: BaseException) -> bool:
    if isinstance(error, (ImportError, FileNotFoundError, PermissionError)):
        return True
    # (gcsfs has no code in the error of a 403.)
    if isinstance(error, OSError) and str(error).startswith("Forbidden"):
        return True
    return getattr(error, "code", None) in _FINAL_CODES


def _hint(error: Exception) -> str:
    return hint_for(error) or str(getattr(error, "hint", None) or "")


def _why(error: Exception) -> str:
    if isinstance(error, SharedPathwaysError | _NoAnswerError):
        return str(error)
    return " ".join(f"{type(error).__name__}: {error}".removesuffix(": ").split())


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()
