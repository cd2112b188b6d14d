"""The inputs of a proxy's Job, and which of them its image supports."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from shared_pathways_service import constants
from shared_pathways_service.api.proxy_options import ProxyOptions
from shared_pathways_service.api.request_fields import check_service_address
from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.validation import check_int
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests.image_names import is_ours
from shared_pathways_service.manifests.link_parts import LinkInputs
from shared_pathways_service.manifests.verified_users.program_parts import (
    PROGRAMS_GROUP,
    has_folder,
)
from shared_pathways_service.version import __version__

__all__ = ["IdentityInputs", "ProxyJobInputs", "check_limits"]

#: Characters of the session's UUID in names.
_SESSION_PART: Final = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class IdentityInputs:
    """What proves the user of a proxy to a resource manager that verifies users.

    Attributes:
      audience: The audience of its pod's token.
      user: The user who creates the Job, by the API server's name.
    """

    audience: str
    user: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyJobInputs:
    """The inputs of a proxy's Job.

    Attributes:
      tenant: The tenant, whose name is the Job's too. Images that are not ours read only its
        slices.
      session: The session's UUID, a label of its objects.
      service_address: ``host:port`` of the resource manager.
      service_name: The service's JobSet; empty if not known.
      insecure_server_credentials: Whether the service's servers use plaintext between each other.
      gcs_bucket: ``gs://…`` for scratch data; may be empty.
      labels: More labels, for the Job.
      created_by_pid: The process that the Job is for, on the tenant's host.
      link: The far end of a resumable link; None: the link is plain.
      identity: How its pod proves its user; None: it need not.
      programs_claim: The claim with compiled programs of verified users; empty: there is none.
      engine: Where programs run; images that are not ours have no choice.
      platform: What executors compute on.
      keep_for_s: The session's `keep_for_s`, an annotation of the Job.
      deadline_s: Seconds from the Job's start to its end, unless it is moved (`lifetime`).
    """

    tenant: TenantRequest
    namespace: str
    session: str
    service_address: str
    image: str
    service_name: str = ""
    insecure_server_credentials: bool = False
    gcs_bucket: str = ""
    options: ProxyOptions = dataclasses.field(default_factory=ProxyOptions)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    created_by_pid: int = 0
    client_version: str = __version__
    link: LinkInputs | None = None
    identity: IdentityInputs | None = None
    programs_claim: str = ""
    engine: str = constants.LOCAL_ENGINE
    platform: str = constants.CPU
    keep_for_s: float | None = None
    deadline_s: int = int(constants.PROXY_DEADLINE_S)

    def __post_init__(self) -> None:
        check_service_address(self.service_address, field="service_address")
        check_int("deadline_s", self.deadline_s, low=1)
        check_limits(self.options, self.image)

    @property
    def has_token(self) -> bool:
        """Whether the proxy gets a token, which Google's image does not support."""
        return is_ours(self.image)

    @property
    def has_executors(self) -> bool:
        """Whether it computes on executors."""
        return self.has_token and self.engine == constants.DISTRIBUTED_ENGINE

    @property
    def sidecar(self) -> LinkInputs | None:
        """The link whose far end is a sidecar; None: there is none, or the proxy starts it."""
        return None if is_ours(self.image) else self.link

    @property
    def has_secret(self) -> bool:
        """Whether a container of its pod gets a token."""
        return self.has_token or self.sidecar is not None

    @property
    def programs_user(self) -> str:
        """The verified user whose compiled programs it uses; empty: it does not use any."""
        if self.identity is None or not self.programs_claim or not self.has_token:
            return ""
        if self.has_executors:
            return ""
        if self.options.run_as_user != PROGRAMS_GROUP or not has_folder(self.identity.user):
            return ""
        return self.identity.user

    @property
    def mounted_name(self) -> str:
        """The name of the Secret and the ConfigMap that its pod mounts.

        The next Job of this name may exist before those of the last one are deleted.
        """
        return f"{self.tenant.name}-{self.session[:_SESSION_PART]}"


def check_limits(options: ProxyOptions, image: str) -> None:
    """Refuses options that the image does not support.

    Raises:
      InvalidRequestError: Limits are requested and the image is not ours; or credentials, and it is
        ours.
    """
    if is_ours(image) and not options.use_insecure_credentials:
        raise InvalidRequestError(
            "proxy_options",
            "use_insecure_credentials:false",
            f"use_insecure_credentials:true with the image {image}: this project's image uses "
            "plaintext only, with a token",
        )
    for name, value in options.limits.items():
        if not is_ours(image):
            raise InvalidRequestError(
                "proxy_options",
                f"{name}:{value}",
                f"no such limit with the image {image}: only this project's image has it",
                hint="the option memory: limits its pod in any case",
            )
