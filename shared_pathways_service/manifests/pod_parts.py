"""Parts of a pod that several manifests have."""

from __future__ import annotations

from typing import Any, Final

__all__ = [
    "INSECURE_CREDENTIALS",
    "INSECURE_SERVERS",
    "env",
    "env_from_annotation",
    "env_from_label",
    "literal",
    "toleration",
]

#: Lets JAX's client, and Pathways' proxy, speak gRPC without TLS.
INSECURE_CREDENTIALS: Final = "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"
#: Lets the servers of Pathways speak gRPC with each other outside of Google Cloud, where there is
#: no ALTS; name and value as in MaxText's `run_pathways_tests.yml`.
INSECURE_SERVERS: Final = (
    "PATHWAYS_UNSAFE_UNSAFE_OVERRIDE_GRPC_CREDENTIALS",
    "grpc_insecure_override",
)


def literal(text: str) -> str:
    """Returns `text` so that Kubernetes, which puts variables in for ``$(NAME)``, leaves it."""
    return text.replace("$", "$$")


def env(name: str, value: str) -> dict[str, Any]:
    """Returns a variable of that very value."""
    return {"name": name, "value": literal(value)}


def env_from_label(name: str, label: str) -> dict[str, Any]:
    """Returns a variable with the value of one of the pod's labels."""
    return _from_field(name, f"metadata.labels['{label}']")


def env_from_annotation(name: str, annotation: str) -> dict[str, Any]:
    """Returns a variable with the value of one of the pod's annotations."""
    return _from_field(name, f"metadata.annotations['{annotation}']")


def toleration(text: str) -> dict[str, str]:
    """Returns a toleration of a taint as kubectl writes it: ``KEY[=VALUE][:EFFECT]``.

    Without a value any will do, without an effect all are tolerated.
    """
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    tolerated = {"key": key, "operator": "Equal" if equals else "Exists"}
    if equals:
        tolerated["value"] = value
    if effect:
        tolerated["effect"] = effect
    return tolerated


def _from_field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
