"""The inputs of a service's page in its cluster, and checks that need no cluster."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Final

from shared_pathways_service.api.page_identity import KINDS, OIDC, PageIdentity, is_page_url
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests.image_names import Image, is_ours

__all__ = ["PageInputs", "page_from_text", "page_text"]

_PREFIX: Final = "--ui-"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageInputs:
    """The inputs of a page.

    Attributes:
      url: The address at which the proxy in front of it serves it.
      identity: The assertions of the proxy.
      image: An image of ours; empty: the service's.
    """

    url: str
    identity: PageIdentity
    image: str = ""

    @classmethod
    def check(cls, given: dict[str, str | None]) -> PageInputs:
        """Checks options of `sps deploy`, by their names without ``--ui-``.

        Raises:
          InvalidRequestError: One is wrong or missing; a page without an identity would show the
            service to all who reach it.
        """
        kind, url = given.get("identity"), given.get("url")
        if kind is None:
            raise InvalidRequestError(
                f"{_PREFIX}identity",
                None,
                f"with --ui, {' or '.join(KINDS)}: a proxy of yours must sign its users",
                hint="`--ui-identity iap --ui-audience AUDIENCE --ui-url URL` behind Google's IAP; "
                "`--ui-identity oidc --ui-issuer URL --ui-audience CLIENT_ID --ui-url URL` behind "
                "a proxy that passes ID tokens on, such as oauth2-proxy",
            )
        if url is None or not is_page_url(url):
            expected = (
                "the address at which your proxy serves the page, e.g. https://tpus.example.org/"
            )
            raise InvalidRequestError(f"{_PREFIX}url", url, expected)
        jwks = given.get("jwks")
        if jwks is not None and jwks.startswith("/"):
            raise InvalidRequestError(f"{_PREFIX}jwks", jwks, "an https URL: the pod has no files")
        identity = PageIdentity.check(
            kind,
            audience=given.get("audience"),
            issuer=given.get("issuer"),
            jwks=jwks,
            header=given.get("identity-header"),
            prefix=_PREFIX,
        )
        image = given.get("image") or ""
        if image:
            image = str(Image.parse(image, field=f"{_PREFIX}image"))
        return cls(url=url, identity=identity, image=image)

    def options(self) -> dict[str, str | None]:
        """Returns the options that `check` makes these inputs of."""
        identity = self.identity
        is_oidc = identity.kind == OIDC
        return {
            "url": self.url,
            "image": self.image or None,
            "identity": identity.kind,
            "audience": identity.audience,
            "jwks": identity.jwks or None,
            "issuer": identity.issuer if is_oidc else None,
            "identity-header": identity.header if is_oidc else None,
        }

    def image_for(self, service_image: str) -> str:
        """Returns the page's image beside a service's.

        Raises:
          InvalidRequestError: It is not an image of ours.
        """
        image = self.image or service_image
        if not is_ours(image):
            expected = f"a server image of this project; {image} has no `sps ui`"
            raise InvalidRequestError(f"{_PREFIX}image", self.image or None, expected)
        return image


def page_text(page: PageInputs) -> str:
    """Returns the inputs as a JobSet's annotation keeps them."""
    return json.dumps(dataclasses.asdict(page), separators=(",", ":"), sort_keys=True)


def page_from_text(text: str) -> PageInputs | None:
    """Returns the inputs that `page_text` wrote; None: there are none.

    Raises:
      InvalidRequestError: The text was changed by hand.
    """
    if not text:
        return None
    try:
        fields: dict[str, Any] = json.loads(text)
        found = PageInputs(**{**fields, "identity": PageIdentity(**fields["identity"])})
        if PageInputs.check(found.options()) != found:
            raise ValueError("it has what no options make")
        return found
    except (InvalidRequestError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidRequestError("sps.dev/page", text, "as `sps deploy --ui` wrote it") from error
