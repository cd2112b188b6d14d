"""A page behind an authenticating proxy: which assertions are believed, and what the others get."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from harness.processes import DEADLINE_S, run_async
from harness.web_page import Script
from shared_pathways_service.api.page_identity import PageIdentity
from shared_pathways_service.errors import InvalidRequestError, ServiceNotReady
from shared_pathways_service.web.identity.assertions import (
    AssertionRefused,
    PublicKey,
    key_id_of,
    usable_keys,
    visitor_of,
)
from shared_pathways_service.web.identity.identity_guard import ByIdentity
from shared_pathways_service.web.identity.key_reading import read_keys
from shared_pathways_service.web.identity.signing_keys import SigningKeys
from shared_pathways_service.web.outer_address import OuterAddress
from shared_pathways_service.web.page_access import HEADERS
from shared_pathways_service.web.page_guard import USER_EXPIRES, ByPermissions, Refusal
from shared_pathways_service.web.page_server import PageParts, serving
from shared_pathways_service.web.service_feed import ServiceFeed
from tests.web.issuer import AUDIENCE, Issuer, iap, oidc, serving_documents

HEADER = "X-Goog-IAP-JWT-Assertion"
HOST = {"Host": "tpus.example.org"}
Read = Callable[[], Awaitable[Mapping[str, PublicKey]]]


@contextlib.asynccontextmanager
async def page(identity: PageIdentity, read: Read) -> AsyncIterator[aiohttp.ClientSession]:
    """Serves a page at https://tpus.example.org; yields a client without an assertion."""
    keys = SigningKeys(read)
    guard = ByIdentity(identity, keys, OuterAddress("https://tpus.example.org/"))
    feed = ServiceFeed(Script(), "kubernetes", interval_s=0.05)
    parts = PageParts(feed=feed, guard=guard, is_shared=True)
    async with (
        asyncio.timeout(DEADLINE_S),
        contextlib.aclosing(keys),
        serving(parts, 0) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=HOST) as client,
    ):
        yield client


def known(issuer: Issuer) -> Read:
    async def read() -> Mapping[str, PublicKey]:
        return usable_keys(issuer.jwks())

    return read


def answers(*shown: Mapping[str, str], issuer: Issuer) -> list[tuple[int, str]]:
    """Returns status and text of the page's answers to requests with these headers."""
    found: list[tuple[int, str]] = []

    async def run() -> None:
        async with page(iap(), known(issuer)) as client:
            for headers in shown:
                async with client.get("/", headers=headers) as answer:
                    found.append((answer.status, await answer.text()))

    run_async(run())
    return found


def test_a_signed_assertion_shows_the_page_and_its_user() -> None:
    issuer = Issuer()

    async def run() -> None:
        async with page(iap(), known(issuer)) as client:
            shown = {HEADER: issuer.signed()}
            async with client.get("/", headers=shown) as answer:
                assert answer.status == 200
                assert "<main" in await answer.text()
                # Neither a cookie nor a token: each request has its assertion.
                assert not answer.cookies
            async with client.get("/api/actions", headers=shown) as answer:
                assert await answer.json() == {"csrf_token": None, "user": "ada@example.org"}
            async with client.get("/api/stream", headers=shown) as answer:
                assert await answer.content.readline() == b"event: state\n"

    run_async(run())


def test_what_a_shared_page_does_not_have() -> None:
    issuer = Issuer()

    async def run() -> None:
        async with page(iap(), known(issuer)) as client:
            shown = {HEADER: issuer.signed()}
            acting = client.post("/api/actions/cordon", json={"slice": "a"}, headers=shown)
            async with acting as answer:
                assert answer.status == 403
                assert "read-only" in (await answer.json())["error"]
            async with client.get("/api/log", params={"name": "a"}, headers=shown) as answer:
                assert answer.status == 403
                assert "sps logs" in (await answer.json())["hint"]
            async with client.get("/api/jobs", headers=shown) as answer:
                assert await answer.json() == {"jobs": None}
            # Probes have no assertion, and learn nothing.
            async with client.get("/healthz", headers={"Host": "10.0.0.7:8080"}) as answer:
                assert (answer.status, await answer.read()) == (200, b"")

    run_async(run())


def _unsigned(issuer: Issuer) -> str:
    [key] = issuer.jwks()["keys"]
    return jwt.encode(issuer.claims(), "", "none", headers={"kid": key["kid"]})


def _by_public_key(issuer: Issuer) -> str:
    """An assertion whose signature is an HMAC with the public key, which everybody has."""
    [key] = issuer.jwks()["keys"]
    header = {"alg": "HS256", "typ": "JWT", "kid": key["kid"]}
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in (header, issuer.claims())
    ]
    body = b".".join(parts)
    mac = hmac.new(issuer.pem(), body, hashlib.sha256).digest()
    return (body + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


def _altered(issuer: Issuer) -> str:
    """An assertion with the signature of another."""
    head, _, _ = issuer.signed(email="eve@example.org").rpartition(".")
    return f"{head}.{issuer.signed().rpartition('.')[2]}"


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda of: of.signed(aud="/projects/1/global/backendServices/3"), "another audience"),
        (lambda of: of.signed(iss="https://evil.example"), "another issuer"),
        (lambda of: of.signed(exp=int(time.time()) - 60), "has expired"),
        (lambda of: of.signed(iat=int(time.time()) + 600), "not valid yet"),
        (lambda of: of.signed(exp=None), "is missing"),
        (lambda of: of.signed(sub=None), "is missing"),
        (lambda of: of.signed(kid="another"), "not one of the issuer"),
        (lambda _: Issuer().signed(), "not one of the issuer"),
        (lambda of: Issuer().signed(kid=of.jwks()["keys"][0]["kid"]), "signature is wrong"),
        (_altered, "signature is wrong"),
        (_unsigned, "its algorithm is not one of ES256"),
        (_by_public_key, "its algorithm is not one of ES256"),
        (lambda of: of.signed(iss=[of.name]), "another issuer"),
        (lambda of: of.signed(exp=10**400), "not valid"),
        (lambda of: of.signed(exp=[1]), "not valid"),
        (lambda of: of.signed(sub=7), "not valid"),
        (lambda of: of.signed(headers={"typ": "at+jwt"}), "access token"),
        (lambda of: of.signed(headers={"crit": ["x"], "x": 1}), "not a JSON Web Token"),
        (lambda of: of.signed().replace(".", ".\u00e9", 1), "not a JSON Web Token"),
        (lambda _: "ada@example.org", "not a JSON Web Token"),
        (lambda _: "a" * 8000 + "." + "b" * 100, "not a JSON Web Token"),
    ],
)
def test_no_other_assertion_is_believed(made: Callable[[Issuer], str], why: str) -> None:
    issuer = Issuer()
    [(status, text)] = answers({HEADER: made(issuer)}, issuer=issuer)
    assert status == 401
    assert why in text
    assert "https://tpus.example.org/" in text


def test_requests_without_an_assertion_are_told_where_to_log_in() -> None:
    issuer = Issuer()
    good = issuer.signed()
    found = answers(
        {},
        {"X-Forwarded-User": "ada"},
        {"X-Goog-Authenticated-User-Email": "accounts.google.com:ada@example.org"},
        {"Authorization": f"Bearer {good}"},
        {"Cookie": f"sps-ui={good}"},
        issuer=issuer,
    )
    assert [status for status, _ in found] == [401] * 5
    assert all("there is none" in text for _, text in found)


def test_two_assertions_are_none() -> None:
    issuer = Issuer()

    async def run() -> None:
        async with page(iap(), known(issuer)) as client:
            twice = [(HEADER, issuer.signed()), (HEADER, issuer.signed(email="eve@example.org"))]
            async with client.get("/", headers=twice) as answer:
                assert answer.status == 401
                assert "there are several" in await answer.text()

    run_async(run())


def test_another_name_of_the_page_is_refused() -> None:
    issuer = Issuer()
    shown = {HEADER: issuer.signed()}
    found = answers(
        {**shown, "Host": "evil.example"}, {**shown, "Host": "127.0.0.1"}, shown, issuer=issuer
    )
    assert [status for status, _ in found] == [403, 403, 200]
    assert "https://tpus.example.org/" in found[0][1]


class Ended(ByPermissions):
    """Lets in requests whose assertion ends while they are answered."""

    async def refusal(self, request: web.Request) -> Refusal | None:
        request[USER_EXPIRES] = time.time()
        return None


def test_a_stream_ends_with_its_assertion() -> None:
    async def run() -> None:
        feed = ServiceFeed(Script(), "kubernetes", interval_s=0.05)
        async with (
            asyncio.timeout(DEADLINE_S),
            serving(PageParts(feed=feed, guard=Ended()), 0) as port,
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
            client.get("/api/stream") as answer,
        ):
            assert (await answer.content.read()).decode() == "event: again\ndata:\n\n"

    run_async(run())
    issuer = Issuer()
    [key] = usable_keys(issuer.jwks()).values()
    claims = issuer.claims()
    found = visitor_of(issuer.signed(**claims), key, iap())
    assert (found.user, found.expires) == ("ada@example.org", claims["exp"] + 30)


class Reading:
    """An issuer's keys as they are read, by a clock of the test."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.at = 0.0
        self.times: list[float] = []
        self.is_failing = False
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.has_ended = asyncio.Event()

    async def read(self) -> Mapping[str, PublicKey]:
        self.times.append(self.at)
        try:
            await self.may_end.wait()
            if self.is_failing:
                raise ServiceNotReady("no keys today")
            return usable_keys(self.issuer.jwks())
        finally:
            self.has_ended.set()

    @contextlib.asynccontextmanager
    async def keys(self) -> AsyncIterator[SigningKeys]:
        async with asyncio.timeout(DEADLINE_S):
            async with contextlib.aclosing(SigningKeys(self.read, lambda: self.at)) as keys:
                yield keys

    def latest(self) -> str:
        return str(self.issuer.jwks()["keys"][-1]["kid"])


def test_keys_are_read_again_for_an_unknown_one_but_not_at_will() -> None:
    async def run() -> None:
        reading = Reading(issuer := Issuer())
        async with reading.keys() as keys:
            # One reading serves requests that arrive together.
            await asyncio.gather(*(keys.key(reading.latest()) for _ in range(5)))
            assert reading.times == [0.0]
            issuer.rotate(keep=True)
            for _ in range(3):
                with pytest.raises(AssertionRefused):
                    await keys.key(reading.latest())
            assert reading.times == [0.0]
            reading.at = 10.0
            await keys.key(reading.latest())
            assert reading.times == [0.0, 10.0]

    run_async(run())


def test_known_keys_are_there_at_once_while_they_are_read_again() -> None:
    async def run() -> None:
        reading = Reading(issuer := Issuer())
        old = reading.latest()
        async with reading.keys() as keys:
            await keys.key(old)
            issuer.rotate()
            # An hour later, of an issuer that does not answer yet.
            reading.at = 3600.0
            reading.may_end.clear()
            reading.has_ended.clear()
            await keys.key(old)
            await keys.key(old)
            unknown = asyncio.create_task(keys.key(reading.latest()))
            await asyncio.sleep(0)
            assert not unknown.done()
            # It has withdrawn the old one.
            reading.may_end.set()
            await unknown
            with pytest.raises(AssertionRefused):
                await keys.key(old)
            assert reading.times == [0.0, 3600.0]

    run_async(run())


def test_a_reading_ends_with_its_page() -> None:
    async def run() -> None:
        reading = Reading(Issuer())
        async with reading.keys() as keys:
            await keys.key(reading.latest())
            reading.at = 3600.0
            reading.may_end.clear()
            reading.has_ended.clear()
            await keys.key(reading.latest())
            await asyncio.sleep(0)
            assert not reading.has_ended.is_set()
        assert reading.has_ended.is_set()

    run_async(run())


def test_keys_that_cannot_be_read_let_nobody_in_and_lock_out_after_a_day_only() -> None:
    async def run() -> None:
        reading = Reading(issuer := Issuer())
        reading.is_failing = True
        async with (
            page(iap(), reading.read) as client,
            client.get("/", headers={HEADER: issuer.signed()}) as answer,
        ):
            assert answer.status == 503
            # (Whoever asks is not known: the reason is in the log.)
            assert "no keys today" not in await answer.text()
        async with reading.keys() as keys:
            with pytest.raises(ServiceNotReady):
                await keys.key(reading.latest())
            reading.is_failing, reading.at = False, 10.0
            await keys.key(reading.latest())
            # An issuer that is away for hours.
            reading.is_failing, reading.at = True, 10.0 + 86_399.0
            await keys.key(reading.latest())
            reading.at += 1.0
            with pytest.raises(ServiceNotReady):
                await keys.key(reading.latest())
            reading.is_failing = False
            reading.at += 10.0
            await keys.key(reading.latest())

    run_async(run())


def _signing_key(algorithm: str) -> tuple[Any, Any]:
    """Returns a private key for an algorithm, and its form as a JWK."""
    curves: Mapping[str, Any] = {
        "ES256": ec.SECP256R1,
        "ES384": ec.SECP384R1,
        "ES512": ec.SECP521R1,
    }
    if algorithm in curves:
        return ec.generate_private_key(curves[algorithm]()), jwt.algorithms.ECAlgorithm
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate(), jwt.algorithms.OKPAlgorithm
    return rsa.generate_private_key(65537, 2048), jwt.algorithms.RSAAlgorithm


@pytest.mark.parametrize(
    "algorithm",
    [
        *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
        *("ES256", "ES384", "ES512", "EdDSA"),
    ],
)
def test_each_algorithm_is_verified_with_and_without_its_name_in_the_key(algorithm: str) -> None:
    identity = oidc("https://login.example.org")
    private, form = _signing_key(algorithm)
    public = {**json.loads(form.to_jwk(private.public_key())), "kid": "k"}
    claims = Issuer(identity.issuer).claims()
    signed = jwt.encode(claims, private, algorithm, headers={"kid": "k"})
    assert key_id_of(signed, identity) == "k"
    for named in ({}, {"alg": algorithm}):
        [key] = usable_keys({"keys": [{**public, **named}]}).values()
        assert visitor_of(signed, key, identity).user == claims["sub"]
        # For IAP no other algorithm is believed, whatever the key.
        if algorithm != "ES256":
            with pytest.raises(AssertionRefused):
                visitor_of(signed, key, iap())
    if form is jwt.algorithms.RSAAlgorithm:
        other = "PS256" if algorithm == "RS256" else "RS256"
        [key] = usable_keys({"keys": [{**public, "alg": other}]}).values()
        with pytest.raises(AssertionRefused, match="another algorithm"):
            visitor_of(signed, key, identity)


def test_an_answer_to_an_error_of_the_page_has_its_headers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(ByPermissions):
        async def refusal(self, _request: web.Request) -> Refusal | None:
            raise RuntimeError("broken")

    async def run() -> None:
        feed = ServiceFeed(Script(), "kubernetes", interval_s=0.05)
        async with (
            asyncio.timeout(DEADLINE_S),
            serving(PageParts(feed=feed, guard=Broken()), 0) as port,
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
            client.get("/") as answer,
        ):
            assert answer.status == 500
            assert HEADERS.items() <= answer.headers.items()
            assert "broken" not in await answer.text()

    run_async(run())
    assert "broken" in caplog.text
    caplog.clear()


def test_only_public_keys_for_signatures_are_used() -> None:
    [good] = Issuer().jwks()["keys"]
    odd = [
        {**good, "kid": "encrypts", "use": "enc"},
        {"kty": "oct", "kid": "secret", "k": "c2VjcmV0", "alg": "HS256"},
        {"kty": "EC", "kid": "broken", "crv": "P-256", "x": "?", "y": "?"},
        {name: value for name, value in good.items() if name != "kid"},
        "a text",
    ]
    assert list(usable_keys({"keys": [*odd, good]})) == [good["kid"]]
    for wrong in ("a text", {"keys": "a text"}, None):
        with pytest.raises(ValueError, match="JWK set"):
            usable_keys(wrong)


def test_keys_come_from_a_file_a_url_or_the_discovery_document(tmp_path: Path) -> None:
    issuer = Issuer()
    [key] = issuer.jwks()["keys"]
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(issuer.jwks()))
    documents: dict[str, Any] = {"/keys": issuer.jwks(), "/moved": "/keys"}

    async def names(identity: PageIdentity) -> list[str]:
        return list(await read_keys(identity))

    with serving_documents(documents) as (url, asked):
        documents["/.well-known/openid-configuration"] = {
            "issuer": url,
            "jwks_uri": f"{url}/keys",
        }
        for identity in (iap(str(file)), iap(f"{url}/keys"), oidc(url)):
            assert asyncio.run(names(identity)) == [key["kid"]]
        assert asked == ["/keys", "/.well-known/openid-configuration", "/keys"]

        def refused(identity: PageIdentity, why: str) -> None:
            with pytest.raises(ServiceNotReady, match=why):
                asyncio.run(names(identity))

        refused(iap(f"{url}/nothing"), "answers with 404")
        refused(iap(f"{url}/moved"), "answers with 302")
        refused(iap(str(tmp_path / "none")), "No such file")
        documents["/large"] = {"keys": ["x" * (1 << 20)]}
        refused(iap(f"{url}/large"), "more than")
        documents["/.well-known/openid-configuration"]["jwks_uri"] = "http://evil.example/keys"
        refused(oidc(url), "no https URL")
        documents["/.well-known/openid-configuration"]["issuer"] = "https://evil.example"
        refused(oidc(url), "another issuer")
    refused(iap(f"{url}/keys"), "cannot be read from")


def test_an_id_token_of_any_provider_is_verified() -> None:
    issuer = Issuer("https://login.example.org/realm", "RS256")
    shown: list[Any] = []

    async def run() -> None:
        for header, words in (("Authorization", "Bearer {}"), ("X-Forwarded-Id-Token", "{}")):
            identity = oidc(issuer.name, header=header)
            async with page(identity, known(issuer)) as client:
                for changed in (
                    {"email_verified": True},
                    # Who writes an address into a profile is not its owner yet.
                    {"email_verified": False},
                    {"email_verified": True, "email": None},
                    {"aud": ["tpus", "account"], "azp": "tpus"},
                ):
                    text = words.format(issuer.signed(**changed))
                    async with client.get("/api/actions", headers={header: text}) as answer:
                        shown.append((await answer.json())["user"])
                for wrong in (
                    issuer.signed(aud="account"),
                    # A token of another application that may call this one.
                    issuer.signed(azp="another"),
                    "",
                    "Basic YTpi",
                ):
                    text = wrong if " " in wrong else words.format(wrong)
                    async with client.get("/", headers={header: text}) as answer:
                        assert answer.status == 401

    run_async(run())
    number = "accounts.google.com:117"
    assert shown == ["ada@example.org", number, number, number] * 2


@pytest.mark.parametrize(
    ("kind", "options", "field"),
    [
        ("header", {}, "--identity"),
        ("iap", {}, "--audience"),
        ("iap", {"audience": " "}, "--audience"),
        ("iap", {"audience": AUDIENCE, "issuer": "https://a.example"}, "--issuer"),
        ("iap", {"audience": AUDIENCE, "header": "X-A"}, "--identity-header"),
        ("iap", {"audience": AUDIENCE, "jwks": "http://a.example/keys"}, "--jwks"),
        ("iap", {"audience": AUDIENCE, "jwks": "keys.json"}, "--jwks"),
        ("oidc", {"audience": "a"}, "--issuer"),
        ("oidc", {"audience": "a", "issuer": "http://a.example"}, "--issuer"),
        *(
            ("oidc", {"audience": "a", "issuer": "https://a.example", "header": header}, field)
            for field in ("--identity-header",)
            for header in (
                *("a b", "X-Forwarded-User", "X-Forwarded-Access-Token", "X-User", "Host"),
                *("Cookie", "X-Forwarded-Id-Token\n", ""),
            )
        ),
        *(
            ("iap", {"audience": AUDIENCE, "jwks": url}, "--jwks")
            for url in (
                "https://a.example/ke ys",
                "https://a.example/keys\n",
                "https://a.example/\tkeys",
                "https://a@evil.example/keys",
                "https://a.example/keys#a",
                "https:///keys",
            )
        ),
        ("oidc", {"audience": "a", "issuer": "https://a.example/?b"}, "--issuer"),
        ("oidc", {"audience": "a", "issuer": "https://a.example\n"}, "--issuer"),
    ],
)
def test_wrong_options_are_refused_by_name(
    kind: str, options: Mapping[str, str], field: str
) -> None:
    given: dict[str, Any] = {"audience": None, **options}
    with pytest.raises(InvalidRequestError) as refused:
        PageIdentity.check(kind, **given)
    assert refused.value.field.startswith(field)


def test_keys_may_be_at_a_url_with_a_query() -> None:
    url = "https://login.example.org/keys?appid=1"
    assert iap(url).jwks == url
    for header in ("authorization", "X-Forwarded-Id-Token", "Cf-Access-Jwt-Assertion"):
        assert oidc("https://a.example", header=header).header == header
