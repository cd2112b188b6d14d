"""Files on their way through object stores of this machine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gcsfs.retry import HttpError

from harness.object_stores import BUCKET, object_store
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.homes.kubernetes import sent_files
from shared_pathways_service.homes.kubernetes.sent_files import (
    FilesNotReceivedError,
    download,
    upload,
)

# gcsfs sends what is smaller than 5 MiB as one piece of bytes.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")

CONTENT = bytes(range(256)) * 4096


@pytest.fixture(scope="module", params=["gs", "s3"])
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a bucket that exists."""
    with object_store(request.param) as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield f"{request.param}://{BUCKET}"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "archive"
    path.write_bytes(CONTENT)
    return path


def test_an_archive_arrives(bucket: str, archive: Path, tmp_path: Path) -> None:
    received = tmp_path / "received"
    told: list[str] = []

    async def send_and_receive() -> str:
        url = await upload(archive, f"{bucket}/jobs/", told.append)
        # Again, as for another job of the same files.
        assert await upload(archive, f"{bucket}/jobs") == url
        await download(url, received)
        return url

    url = asyncio.run(send_and_receive())
    assert url.startswith(f"{bucket}/jobs/")
    size = len(CONTENT) >> 20
    assert told[-1] == f"uploading to {url}: {size} of {size} MiB"
    assert received.read_bytes() == CONTENT


def test_what_is_not_there_is_final(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(
        FilesNotReceivedError, match=r"none\.tar\.gz.*identity of the pod"
    ) as raised:
        asyncio.run(download(f"{bucket}/none.tar.gz", tmp_path / "received"))
    assert raised.value.is_final


def test_another_content_is_refused(
    bucket: str, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sent_files, "_digest", lambda _path: "0" * 64)
        url = asyncio.run(upload(archive, bucket))
    with pytest.raises(FilesNotReceivedError, match="not the working directory") as raised:
        asyncio.run(download(url, tmp_path / "received"))
    assert raised.value.is_final


def test_a_bucket_that_does_not_exist_is_named(bucket: str, archive: Path) -> None:
    missing = bucket.replace(BUCKET, "no-such-bucket")
    with pytest.raises(InvalidRequestError, match="can replace objects") as raised:
        asyncio.run(upload(archive, missing))
    assert (raised.value.field, raised.value.value) == ("workdir_bucket", missing)


@pytest.mark.parametrize(
    ("error", "is_final"),
    [
        (OSError("Forbidden: https://storage.googleapis.com/…"), True),
        (HttpError({"code": 404}), True),
        (PermissionError("Access Denied"), True),
        (HttpError({"code": 401}), False),
        (HttpError({"code": 503}), False),
        (ConnectionError("refused"), False),
    ],
)
def test_a_refusal_is_final(error: Exception, is_final: bool) -> None:
    assert sent_files._is_final(error) is is_final


def test_a_missing_library_is_named(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs.core", None)
    with pytest.raises(InvalidRequestError) as raised:
        asyncio.run(upload(archive, "gs://any"))
    assert "the extra `buckets`" in (raised.value.hint or "")
    with pytest.raises(FilesNotReceivedError, match="extra `buckets`"):
        asyncio.run(download("gs://any/none.tar.gz", archive))
