"""The auth-provider ``oidc``: its token counts until it expires, by client-go's rules."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.kube.auth_provider import provider_tokens
from shared_pathways_service.kube.kubeconfig_entry import Entry

FILE = Path("/home/ada/.kube/config")
#: Seconds since the epoch, 2027-01-15T08:00:00Z.
EXPIRY = 1_800_000_000
VALID = {"idp-issuer-url": "https://login.test", "client-id": "kubernetes"}


def jwt(claims: bytes) -> str:
    def part(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).decode().rstrip("=")

    return f"{part(b'{}')}.{part(claims)}.{part(b'signed')}"


def until(expiry: Any) -> str:
    return jwt(json.dumps({"sub": "ada", "exp": expiry}).encode())


def user(config: Any) -> Entry:
    data = {"auth-provider": {"name": "oidc", "config": config}}
    return Entry(kind="user", name="ada", data=data, file=FILE)


@pytest.mark.parametrize("expiry", [EXPIRY, EXPIRY + 0.5, str(EXPIRY)])
def test_a_token_counts_until_ten_seconds_before_it_expires(expiry: Any) -> None:
    token = until(expiry)
    now = EXPIRY - 3600.0
    tokens = provider_tokens(user({**VALID, "id-token": token}), now=lambda: now)

    async def test() -> None:
        nonlocal now
        assert await tokens.header() == f"Bearer {token}"
        now = EXPIRY - 10.5
        assert await tokens.header() == f"Bearer {token}"
        now = EXPIRY - 9.0
        with pytest.raises(AccessDenied) as caught:
            await tokens.header()
        assert caught.value.message == (
            "no credentials for the cluster: id-token of auth-provider of user ada in "
            "/home/ada/.kube/config expired at 2027-01-15T08:00:00Z"
        )
        assert (caught.value.verb, caught.value.resource) == ("connect", "cluster")

    asyncio.run(test())


def test_a_token_that_kubectl_renews_meanwhile_is_sent(tmp_path: Path) -> None:
    file, now = tmp_path / "config", 0.0
    entry = dataclasses.replace(user({**VALID, "id-token": until(EXPIRY)}), file=file)
    tokens = provider_tokens(entry, now=lambda: now)

    def write(config: dict[str, Any]) -> None:
        one = {"name": "ada", "user": {"auth-provider": {"name": "oidc", "config": config}}}
        file.write_text(json.dumps({"users": [one]}))

    async def test() -> None:
        nonlocal now
        assert await tokens.header() == f"Bearer {until(EXPIRY)}"
        now = EXPIRY + 1.0
        for content in ('{"users": [', "", "users: []"):
            file.write_text(content)
            with pytest.raises(AccessDenied):
                await tokens.header()
        write({**VALID, "id-token": until(EXPIRY + 3600)})
        now += 3.0  # (It is not read for each request.)
        assert await tokens.header() == f"Bearer {until(EXPIRY + 3600)}"

    asyncio.run(test())


def test_a_token_that_the_server_refuses_is_sent_again() -> None:
    token = until(EXPIRY)
    tokens = provider_tokens(user({**VALID, "id-token": token}), now=lambda: 0.0)

    async def test() -> None:
        tokens.refused(await tokens.header())
        assert await tokens.header() == f"Bearer {token}"

    asyncio.run(test())


@pytest.mark.parametrize("refresh", ["", "hush"])
def test_remedies_of_an_expired_token(refresh: str) -> None:
    config = {**VALID, "id-token": until(EXPIRY), "refresh-token": refresh}
    with pytest.raises(AccessDenied) as caught:
        asyncio.run(provider_tokens(user(config), now=lambda: EXPIRY + 1.0).header())
    hint = caught.value.hint
    assert hint.endswith("use kubelogin, an exec plug-in, or connect(api_client=...)")
    assert hint.startswith("run a command of kubectl") == bool(refresh)


@pytest.mark.parametrize("token", [None, "", " "])
def test_a_missing_token(token: str | None) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        provider_tokens(user({**VALID, "id-token": token}))
    error = caught.value
    assert error.field == "id-token of auth-provider of user ada"
    assert error.message == (
        "id-token of auth-provider of user ada is missing in /home/ada/.kube/config"
    )
    assert error.hint == "use kubelogin, an exec plug-in, or connect(api_client=...)"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"idp-issuer-url": ""}, "idp-issuer-url"),
        ({"client-id": None}, "client-id"),
        ({"extra-scopes": ["groups"]}, "extra-scopes"),
        ({"client-secret": 7001}, "client-secret"),
        ({"id-token": 7001}, "id-token"),
        ({"id-token": "hush"}, "id-token"),
        ({"id-token": "hush.hush"}, "id-token"),
        ({"id-token": f"{until(EXPIRY)}.hush"}, "id-token"),
        ({"id-token": "hush.+/+/.hush"}, "id-token"),
        ({"id-token": "hush.eyJleHAiOjF9==.hush"}, "id-token"),
        ({"id-token": "hush.a.hush"}, "id-token"),
        ({"id-token": jwt(b"hush")}, "id-token"),
        ({"id-token": jwt(b"[1]")}, "id-token"),
        ({"id-token": jwt(b"\xff")}, "id-token"),
        ({"id-token": until(None)}, "id-token"),
        ({"id-token": until("soon")}, "id-token"),
        ({"id-token": until(10**400)}, "id-token"),
        ({"id-token": "two\nlines"}, "id-token"),
        ({"id-token": jwt(b"[" * 100_000)}, "id-token"),
        ({1: "hush"}, "1"),
        ({"access-token": 12345678}, "access-token"),
    ],
)
def test_invalid_fields(change: dict[Any, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        provider_tokens(user({**VALID, "id-token": until(EXPIRY), **change}))
    assert caught.value.field == f"{field} of auth-provider of user ada"
    assert caught.value.hint == f"correct it in {FILE}"
    shown = str(caught.value.to_json())
    assert "hush" not in shown
    assert "7001" not in shown


def test_a_config_that_is_not_a_mapping() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        provider_tokens(user("hush"))
    assert caught.value.field == "config of auth-provider of user ada"
    assert "hush" not in str(caught.value.to_json())


@pytest.mark.parametrize("claims", [b"{}", b'{"exp": -1e300}', b'{"exp": NaN}'])
def test_a_token_without_a_time_counts_as_expired(claims: bytes) -> None:
    with pytest.raises(AccessDenied, match="expired at 1970-01-01T00:00:00Z"):
        asyncio.run(provider_tokens(user({**VALID, "id-token": jwt(claims)})).header())
