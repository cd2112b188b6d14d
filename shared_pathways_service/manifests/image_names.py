"""Parses names of container images, and compares the versions in their tags."""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from shared_pathways_service.api.jax_releases import check_pair, release_of
from shared_pathways_service.api.request_fields import check_image
from shared_pathways_service.errors import InvalidRequestError, VersionSkew

__all__ = ["Image", "Versions", "check_skew", "is_ours", "proxy_image_for", "python_skew"]

_OUR_REPOSITORY: Final = "shared-pathways-service"
_SERVER: Final = "server"
_PROXY: Final = "proxy_server"
_JAX: Final = re.compile(r"(?<![a-z])jax(?:lib)?[-_]?v?([0-9]+(?:\.[0-9]+)+)")
_PYTHON: Final = re.compile(r"(?<![a-z])(?:python|py|cp)[-_]?v?([0-9]+\.[0-9]+|3[0-9]+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Versions:
    """Versions of JAX and Python in an image or of the client; empty if unknown."""

    jax: str = ""
    python: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Image:
    """The parts of a container image's name.

    Attributes:
      repository: With the registry, e.g. ``us-docker.pkg.dev/x/pathways/server``.
      tag: Empty if there is none, which means ``latest`` without a digest.
      digest: e.g. ``sha256:…``; empty if there is none.
    """

    repository: str
    tag: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, text: object, *, field: str = "image") -> Image:
        """Parses an image's name.

        Raises:
          InvalidRequestError: The text is not an image's name.
        """
        rest, _, digest = check_image(text, field=field).partition("@")
        # A colon before the last slash belongs to the registry's port.
        path, slash, last = rest.rpartition("/")
        name, _, tag = last.partition(":")
        if not name or ":" in tag:
            raise InvalidRequestError(field, text, "a container image, e.g. REGISTRY/NAME:TAG")
        return cls(repository=f"{path}{slash}{name}", tag=tag, digest=digest)

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")

    @property
    def versions(self) -> Versions:
        """The versions in the tag, e.g. of ``jax-0.9.0`` or ``20260101-python_3.12-jax_0.9.0``."""
        tag = self.tag.lower()
        jax, python = _JAX.search(tag), _PYTHON.search(tag)
        return Versions(jax=jax[1] if jax else "", python=_with_dot(python[1]) if python else "")


def is_ours(image: str) -> bool:
    """Whether an image is one of this project's servers: ``…/shared-pathways-service/server``."""
    folder, _, name = Image.parse(image).repository.rpartition("/")
    return name in (_SERVER, _PROXY) and folder.rpartition("/")[2] == _OUR_REPOSITORY


def proxy_image_for(server_image: str) -> str:
    """Returns the proxy's image that belongs to a resource manager's image.

    It has the same registry, folder and tag. A digest identifies a single image, so it cannot be
    reused.

    Raises:
      InvalidRequestError: The image has only a digest, or is not called ``server``.
    """
    image = Image.parse(server_image)
    folder, slash, name = image.repository.rpartition("/")
    if name != _SERVER or (image.digest and not image.tag):
        raise InvalidRequestError(
            "proxy_server_image",
            None,
            f"the proxy's image, which cannot be derived from the service's, {server_image}",
        )
    return str(Image(repository=f"{folder}{slash}{_PROXY}", tag=image.tag))


def check_skew(client: Versions, image: str) -> str:
    """Compares the client's JAX with that of the resource manager's or the proxy's image.

    Returns:
      A warning; empty without one, or if a version is unknown.

    Raises:
      VersionSkew: The versions cannot work together.
    """
    return check_pair(client.jax, Image.parse(image).versions.jax, image, ours=is_ours(image))


def python_skew(client: Versions, image: str, what: str) -> str:
    """Compares the client with the image that runs colocated Python: a sidecar, or our image.

    Functions are pickled as byte code, so Python's minor version must be the same (cloudpickle's
    documentation). JAX is compared as in `check_skew`, and should also be the same.

    Args:
      client: The client's versions.
      image: The image.
      what: What it is, for messages.

    Returns:
      A warning; empty without one.

    Raises:
      VersionSkew: The versions cannot work together.
    """
    theirs = Image.parse(image).versions
    here, there = release_of(client.python), release_of(theirs.python)
    if here and there and here[:2] != there:
        raise VersionSkew(
            f"Python {client.python} here and Python {theirs.python} in the {what} "
            f"{image} cannot exchange functions",
            client=client.python,
            service=theirs.python,
            hint=f"run the client with Python {theirs.python}",
        )
    warning = check_skew(client, image)
    if warning:
        return warning
    here, there = release_of(client.jax), release_of(theirs.jax)
    if here and there and here[:2] != there[:2]:
        return f"JAX is {client.jax} here and {theirs.jax} in the {what} {image}"
    if theirs.python and theirs.jax:
        return ""
    return f"the tag of the {what} {image} does not name its Python and JAX versions"


def _with_dot(python: str) -> str:
    return python if "." in python else f"{python[0]}.{python[1:]}"
