"""Finding a service that ends meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.processes import run_async
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.homes.embedded import discovery
from shared_pathways_service.homes.embedded.discovery import find
from shared_pathways_service.protocol.auth import read_token
from shared_pathways_service.runtime.settings import Settings
from tests.servers.supervisor.support import embedded, runtime_paths


def test_a_service_that_ends_while_it_is_looked_for_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths = runtime_paths()

    def end_and_read(path: str, *, field: str) -> str | None:
        Path(path).unlink()
        return read_token(path, field=field)

    with embedded():
        assert run_async(found()) is not None
        token = paths.token.read_bytes()
        monkeypatch.setattr(discovery, "read_token", end_and_read)
        try:
            assert run_async(found()) is None
        finally:
            paths.token.touch(mode=0o600)
            paths.token.write_bytes(token)
        # One that cannot be used is told all the same.
        monkeypatch.setattr(discovery, "read_token", lambda _path, field: read_token(field))
        with pytest.raises(InvalidRequestError):
            run_async(found())


async def found() -> object:
    link = await find(Settings.load())
    if link is not None:
        await link.close()
    return link
