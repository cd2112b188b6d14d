"""Verifies the assertions of an authenticating proxy: signed JSON Web Tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import jwt

from shared_pathways_service.api.page_identity import IAP, PageIdentity

__all__ = ["AssertionRefused", "PublicKey", "Visitor", "key_id_of", "usable_keys", "visitor_of"]

#: The algorithms of keys that do not name one: an RSA key may have any of these.
_OF_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
#: Algorithms with a public key: none by which an issuer's key could also sign (HMAC), nor "none".
_ALGORITHMS: Final[Mapping[str, tuple[str, ...]]] = {
    IAP: ("ES256",),
    "oidc": (
        *_OF_RSA,
        *("ES256", "ES384", "ES512", "EdDSA"),
    ),
}
#: What PyJWT raises for claims and headers of other types than they should have, too.
_WRONG: Final = (jwt.PyJWTError, ValueError, TypeError, OverflowError)
#: The types of a JWT that is an access token (RFC 9068).
_ACCESS_TOKENS: Final = ("at+jwt", "application/at+jwt")
_CLAIMS: Final = ("exp", "iat", "iss", "aud", "sub")
#: Seconds by which clocks may differ, as the documentation of IAP allows them.
_CLOCK_SLACK_S: Final = 30.0
#: Characters of an assertion; a header of aiohttp has up to 8190.
_LONGEST: Final = 8190


class AssertionRefused(Exception):  # noqa: N818 - not an error of this program
    """An assertion proves nothing; the text says why, and has no part of the assertion."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Visitor:
    """The user of a request.

    Attributes:
      user: The verified email address, or the issuer's id of the user.
      expires: When the assertion is refused from, in seconds since the epoch.
    """

    user: str
    expires: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicKey:
    """A key that verifies.

    Attributes:
      key: The key, of the `cryptography` package.
      algorithms: The algorithms that it is for.
    """

    key: Any
    algorithms: Sequence[str]


def key_id_of(assertion: str, identity: PageIdentity) -> str:
    """Returns the id of the key that is said to have signed an assertion.

    Raises:
      AssertionRefused: It is no JSON Web Token, or its algorithm is not allowed.
    """
    if len(assertion) > _LONGEST:
        raise AssertionRefused("it is too long")
    try:
        header = jwt.get_unverified_header(assertion.encode("ascii"))
    except _WRONG:
        raise AssertionRefused("it is not a JSON Web Token") from None
    allowed = _ALGORITHMS[identity.kind]
    if header.get("alg") not in allowed:
        raise AssertionRefused(f"its algorithm is not one of {', '.join(allowed)}")
    if str(header.get("typ")).lower() in _ACCESS_TOKENS:
        raise AssertionRefused("it is an access token, which any client may have")
    key_id = header.get("kid")
    if not isinstance(key_id, str) or not key_id:
        raise AssertionRefused("it does not name its key (kid)")
    return key_id


def visitor_of(assertion: str, key: PublicKey, identity: PageIdentity) -> Visitor:
    """Verifies an assertion, and returns its user.

    Args:
      assertion: The assertion.
      key: The key that `key_id_of` names.
      identity: The assertions that are accepted.

    Raises:
      AssertionRefused: The signature is wrong, or a claim is wrong or missing.
    """
    try:
        claims = jwt.decode(
            assertion,
            key.key,
            algorithms=[one for one in key.algorithms if one in _ALGORITHMS[identity.kind]],
            audience=identity.audience,
            issuer=identity.issuer,
            leeway=_CLOCK_SLACK_S,
            options={"require": list(_CLAIMS)},
        )
        expires = float(claims["exp"]) + _CLOCK_SLACK_S
    except _WRONG as error:
        raise AssertionRefused(_why(error)) from None
    if identity.kind != IAP and claims.get("azp") not in (None, identity.audience):
        raise AssertionRefused("it was issued to another client (azp)")
    user = _user_in(claims, identity)
    if not user or not user.isprintable():
        raise AssertionRefused("its user has no name")
    return Visitor(user=user, expires=expires)


def usable_keys(found: object) -> dict[str, PublicKey]:
    """Returns the keys of a JWK set that may verify assertions, by their ids.

    Keys without an id, for encryption, or of a form that is not known are left out, and symmetric
    keys, which would let whoever can read them sign.

    Raises:
      ValueError: It is not a JWK set.
    """
    keys = found.get("keys") if isinstance(found, Mapping) else None
    if not isinstance(keys, list):
        raise ValueError("it is not a JWK set: an object with the list keys")
    return dict(_parsed(keys))


def _parsed(keys: Iterable[object]) -> Iterable[tuple[str, PublicKey]]:
    for key in keys:
        if not isinstance(key, dict) or not isinstance(key.get("kid"), str):
            continue
        if key.get("use", "sig") != "sig" or key.get("kty") not in ("RSA", "EC", "OKP"):
            continue
        try:
            found = jwt.PyJWK(key)
        except _WRONG:
            continue
        is_any_rsa = key["kty"] == "RSA" and "alg" not in key
        algorithms = _OF_RSA if is_any_rsa else (found.algorithm_name,)
        yield key["kid"], PublicKey(key=found.key, algorithms=algorithms)


def _user_in(claims: Mapping[str, Any], identity: PageIdentity) -> str:
    """Returns the user; an address that the provider has not verified could be anybody's."""
    email = claims.get("email")
    is_verified = identity.kind == IAP or claims.get("email_verified") is True
    return email if is_verified and isinstance(email, str) and email else str(claims["sub"])


def _why(error: Exception) -> str:
    reasons: Mapping[type[Exception], str] = {
        jwt.ExpiredSignatureError: "it has expired",
        jwt.ImmatureSignatureError: "it is not valid yet",
        jwt.InvalidAudienceError: "it was issued for another audience",
        jwt.InvalidIssuerError: "it is of another issuer",
        jwt.MissingRequiredClaimError: f"a claim of {', '.join(_CLAIMS)} is missing",
        jwt.InvalidSignatureError: "its signature is wrong",
        jwt.InvalidAlgorithmError: "its key is for another algorithm",
    }
    found = (text for kind, text in reasons.items() if isinstance(error, kind))
    return next(found, "it is not valid")
