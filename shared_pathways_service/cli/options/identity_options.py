"""Options of a page that an authenticating proxy serves to several people."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from shared_pathways_service.api.page_identity import PageIdentity
from shared_pathways_service.api.request_fields import check_service_address
from shared_pathways_service.cli.options.option_groups import takes_options
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["IdentityOptions", "takes_identity"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class IdentityOptions:
    """The given options; None: not given."""

    identity: Annotated[
        str | None,
        typer.Option(
            metavar="iap|oidc",
            help="Serve the page to others, on SPS_BIND_ADDRESS, behind a proxy that signs the "
            "names of its users: Google's IAP, or any that passes ID tokens on. Needs --behind and "
            "--audience.",
            show_default=False,
        ),
    ] = None
    audience: Annotated[
        str | None,
        typer.Option(
            help="With --identity: accept assertions for this audience: IAP's backend service, or "
            "the proxy's client id.",
            show_default=False,
        ),
    ] = None
    issuer: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="With --identity oidc: accept ID tokens of this OpenID provider.",
            show_default=False,
        ),
    ] = None
    jwks: Annotated[
        str | None,
        typer.Option(
            metavar="URL|FILE",
            help="With --identity: read the public keys here. [default: where IAP, or the "
            "provider's discovery document, has them]",
            show_default=False,
        ),
    ] = None
    identity_header: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --identity oidc: the header with the ID token. [default: Authorization]",
            show_default=False,
        ),
    ] = None
    manager: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="With --identity: read the service from its resource manager alone, which this "
            "machine reaches without the API server.",
            show_default=False,
        ),
    ] = None

    def checked(self) -> PageIdentity | None:
        """Returns the identity that the page asks for; None: it is not served to others.

        Raises:
          InvalidRequestError: An option is wrong, missing, or given without ``--identity``.
        """
        if self.identity is not None:
            check_service_address(self.manager, field="--manager")
            return PageIdentity.check(
                self.identity,
                audience=self.audience,
                issuer=self.issuer,
                jwks=self.jwks,
                header=self.identity_header,
            )
        for field in dataclasses.fields(self):
            if (value := getattr(self, field.name)) is not None:
                name = f"--{field.name.replace('_', '-')}"
                raise InvalidRequestError(name, value, "to be given only with --identity")
        return None


takes_identity = takes_options("proxy", IdentityOptions)
