"""Builds parts of pods that several manifests share."""

from __future__ import annotations

from typing import Any, Final

#: Makes JAX's client and Pathways' proxy use gRPC without TLS.
INSECURE_CREDENTIALS: Final = "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"
#: Makes the servers of Pathways use gRPC without ALTS between each other, which exists only in
#: Google Cloud; name and value as in MaxText's `run_pathways_tests.yml`.
INSECURE_SERVERS: Final = (
    "PATHWAYS_UNSAFE_UNSAFE_OVERRIDE_GRPC_CREDENTIALS",
    "grpc_insecure_override",
)


def literal(text: str) -> str:
    """Escapes a text so that Kubernetes does not substitute ``$(NAME)`` in it."""
    return text.replace("$", "$$")


def env(name: str, value: str) -> dict[str, Any]:
    """Returns a variable with this value."""
    return {"name": name, "value": literal(value)}


def restricted() -> dict[str, Any]:
    """Returns the security context of a container that gets no more rights than it starts with."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def env_from_label(name: str, label: str) -> dict[str, Any]:
    """Returns a variable with the value of one of the pod's labels."""
    return env_from_field(name, f"metadata.labels['{label}']")


def env_from_field(name: str, path: str) -> dict[str, Any]:
    """Returns a variable with the value of one of the pod's fields."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def toleration(text: str) -> dict[str, str]:
    """Parses a toleration in kubectl's form of a taint: ``KEY[=VALUE][:EFFECT]``.

    Without a value any value matches, without an effect all effects are tolerated.
    """
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    tolerated = {"key": key, "operator": "Equal" if equals else "Exists"}
    if equals:
        tolerated["value"] = value
    if effect:
        tolerated["effect"] = effect
    return tolerated
