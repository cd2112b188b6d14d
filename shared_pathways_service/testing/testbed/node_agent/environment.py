"""Expands variables and arguments of a container, by Kubernetes' documentation of both."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from shared_pathways_service.testing.testbed.api import Object

__all__ = [
    "CannotConfigure",
    "check_user",
    "environment_of",
    "expand",
    "keys_wanted",
    "replace_names",
]

#: ``$$`` is a dollar; ``$(NAME)`` a variable.
_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_FIELDS = frozenset(
    {
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.podIP",
    }
)


class CannotConfigure(Exception):  # noqa: N818 - it is the pod's fault, not an error of ours
    """A container refers to an object that does not exist."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replaces ``$(NAME)`` by variables; unknown names remain unchanged."""

    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        return variables.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def check_user(pod: Object, container: Mapping[str, Any]) -> None:
    """Refuses a container that would run as root against its own policy, as the kubelet does.

    Raises:
      CannotConfigure: It may not run as root, and its image does, or its user is root.
    """
    of_pod = pod["spec"].get("securityContext") or {}
    security = {**of_pod, **(container.get("securityContext") or {})}
    if not security.get("runAsNonRoot"):
        return
    if security.get("runAsUser") is None:
        raise CannotConfigure("container has runAsNonRoot and image will run as root")
    if security["runAsUser"] == 0:
        raise CannotConfigure("container's runAsUser breaks non-root policy")


def keys_wanted(container: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Returns the objects that a container's variables are read from: (resource, name)."""
    wanted = set()
    for variable in container.get("env") or ():
        source = variable.get("valueFrom") or {}
        for kind, resource in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")):
            if kind in source:
                wanted.add((resource, source[kind]["name"]))
    return wanted


def environment_of(
    container: Mapping[str, Any],
    pod: Object,
    values: Mapping[tuple[str, str], Mapping[str, str]],
) -> dict[str, str]:
    """Returns the variables of a container; one may refer to those before it.

    Args:
      container: From the pod's spec.
      pod: With ``status.podIP`` and ``status.hostIP``.
      values: The contents of the objects that `keys_wanted` names.

    Raises:
      CannotConfigure: A field or key is not there.
    """
    variables: dict[str, str] = {}
    for variable in container.get("env") or ():
        if "valueFrom" in variable:
            variables[variable["name"]] = _value_from(variable["valueFrom"], pod, values)
        else:
            variables[variable["name"]] = expand(str(variable.get("value") or ""), variables)
    return variables


def _value_from(
    source: Mapping[str, Any],
    pod: Object,
    values: Mapping[tuple[str, str], Mapping[str, str]],
) -> str:
    for kind, resource in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")):
        if kind in source:
            name, key = source[kind]["name"], source[kind]["key"]
            if key not in values[resource, name]:
                raise CannotConfigure(f"couldn't find key {key} in {resource} {name}")
            return values[resource, name][key]
    if "fieldRef" not in source:
        raise CannotConfigure(f"the testbed knows no {', '.join(source)}")
    return _field(source["fieldRef"]["fieldPath"], pod)


def _field(path: str, pod: Object) -> str:
    if keyed := _KEYED.fullmatch(path):
        return str((pod["metadata"].get(keyed[1]) or {}).get(keyed[2], ""))
    if path not in _FIELDS:
        raise CannotConfigure(f"the testbed knows no field {path}")
    part, name = path.split(".")
    return str(pod[part].get(name, ""))


def replace_names(texts: Sequence[str], places: Mapping[str, str]) -> list[str]:
    """Replaces names that only a cluster would resolve by addresses and directories."""
    if not places:
        return list(texts)
    # The longest first: one host name may be a prefix of another.
    names = sorted(places, key=len, reverse=True)
    form = re.compile("|".join(rf"(?<![\w.-]){re.escape(name)}(?![\w-])" for name in names))
    return [form.sub(lambda match: places[match[0]], text) for text in texts]
