"""Which releases of JAX work together."""

from __future__ import annotations

import pytest

from shared_pathways_service.api.jax_releases import check_pair, client_serdes
from shared_pathways_service.errors import VersionSkew

TRIED = ["0.9.2", "0.10.1", "0.10.2", "0.11.2", "0.12.0.1"]


@pytest.mark.parametrize(
    ("version", "serdes"),
    [
        ("0.9.0", (0, 0)),
        ("0.9.1", (0, 0)),
        ("0.9.2", (0, 1)),
        ("0.10.2", (3, 3)),
        ("0.11.0.dev20260801", (3, 4)),
        ("0.12.0.1", (3, 6)),
        ("0.13.0", (3, 6)),
        ("0.8.2", None),
        ("latest", None),
        ("", None),
    ],
)
def test_versions_of_the_values(version: str, serdes: tuple[int, int] | None) -> None:
    assert client_serdes(version) == serdes


#: Of XLA's own server, as in Google's images; ours reads what older clients say, and more programs.
REFUSED_BY_OURS = {
    (client, service) for client in ("0.11.2", "0.12.0.1") for service in ("0.9.2", "0.10.1")
}
REFUSED = {
    *REFUSED_BY_OURS,
    *(("0.10.2", "0.9.2"), ("0.10.2", "0.10.1"), ("0.9.2", "0.12.0.1")),
}


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("client", TRIED)
@pytest.mark.parametrize("service", TRIED)
def test_pairs(client: str, service: str, ours: bool) -> None:
    if (client, service) not in (REFUSED_BY_OURS if ours else REFUSED):
        assert check_pair(client, service, "the service", ours=ours) == ""
        return
    with pytest.raises(VersionSkew, match="the service cannot read the client's") as raised:
        check_pair(client, service, "the service", ours=ours)
    assert (raised.value.client, raised.value.service) == (client, service)
    assert f"install jax=={service}" in raised.value.hint


@pytest.mark.parametrize("pair", [("1.0.0", "0.12.0"), ("0.9.0", "1.0")])
def test_another_major_release_is_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(VersionSkew, match="cannot work together"):
        check_pair(*pair, "the service", ours=False)


@pytest.mark.parametrize("pair", [("0.13.0", "0.12.0.1"), ("0.9.2", "0.8.0")])
def test_a_release_that_was_not_tried_is_warned_of(pair: tuple[str, str]) -> None:
    assert "was not tried: jax==" + pair[1] in check_pair(*pair, "the service", ours=False)


@pytest.mark.parametrize("pair", [("", "0.9.2"), ("0.9.2", ""), ("0.13.0", "0.13.1")])
def test_nothing_to_say(pair: tuple[str, str]) -> None:
    assert check_pair(*pair, "the service", ours=False) == ""
