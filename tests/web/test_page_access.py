"""Who may read the page of `sps ui`."""

from __future__ import annotations

import pytest

from shared_pathways_service.web.page_access import is_own_host, is_token
from tests.pure import leaves_nothing_behind

__all__ = ["leaves_nothing_behind"]


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:80", "127.0.0.1"]
)
def test_names_of_loopback_are_accepted(host: str) -> None:
    assert is_own_host(host)


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "[::1", "0.0.0.0",
     "localhost@evil.example"],
)  # fmt: skip
def test_other_names_are_refused_as_dns_rebinding(host: str) -> None:
    assert not is_own_host(host)


@pytest.mark.parametrize("shown", [None, "", "secre", "secret ", "sécret", "\udcff"])
def test_only_the_whole_token_is_accepted(shown: str | None) -> None:
    assert is_token("secret", "secret")
    assert not is_token(shown, "secret")
