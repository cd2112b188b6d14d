"""Checks fields of a request that have a specific form, such as addresses, names and labels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from shared_pathways_service.api.validation import (
    DNS_LABEL_LIMIT,
    check_dns_label,
    check_duration,
)
from shared_pathways_service.constants import LONGEST_LIFETIME_S, SHORTEST_KEEP_FOR_S
from shared_pathways_service.errors import InvalidRequestError

__all__ = [
    "TEAM_LABEL",
    "PROXY_JOB_NAME_LIMIT",
    "check_bucket",
    "check_choice",
    "check_image",
    "check_object_store",
    "check_keep_for",
    "check_proxy_image",
    "check_labels",
    "check_proxy_job_name",
    "check_service_address",
    "check_subdomain",
    "default_proxy_job_name",
]

#: Kubernetes names a pod after its Job with "-xxxxx", which must be a DNS label too.
PROXY_JOB_NAME_LIMIT: Final = DNS_LABEL_LIMIT - len("-xxxxx")

_ADDRESS: Final = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^:/\s\[\]]+):(?P<port>[0-9]{1,5})")
_HOST: Final = re.compile(r"(?=.{1,253}\Z)[a-zA-Z0-9_]([-a-zA-Z0-9_.]*[a-zA-Z0-9])?")
_SUFFIX: Final = re.compile(r"[a-z0-9]{1,16}")
_BUCKET: Final = re.compile(r"gs://(?P<name>[^/\s]+)(?P<path>/[^\s\x00-\x1f]*)?")
_BUCKET_NAME: Final = re.compile(r"[a-z0-9][-a-z0-9_.]*[a-z0-9]")
_IP_ADDRESS: Final = re.compile(r"[0-9]+(\.[0-9]+){3}")
_OBJECT_STORE: Final = re.compile(
    r"(gs|s3)://[a-z0-9][-a-z0-9_.]{1,220}[a-z0-9](/[^\s\x00-\x1f]*)?"
)
_ANY_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:")
_IMAGE: Final = re.compile(r"[a-zA-Z0-9][-a-zA-Z0-9_./:]*(@sha256:[0-9a-f]{64})?")
_LABEL_NAME: Final = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9_.]{0,61}[a-zA-Z0-9])?")
_SUBDOMAIN: Final = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
)
_OWN_LABELS: Final = ("app", "app.kubernetes.io/managed-by")
_OWN_PREFIX: Final = "sps.dev/"
TEAM_LABEL: Final = "sps.dev/team"


def check_choice(field: str, value: object, choices: Sequence[str]) -> str:
    """Returns one of `choices`."""
    if isinstance(value, str) and value in choices:
        return value
    raise InvalidRequestError(field, value, " or ".join(map(repr, choices)))


def check_service_address(value: object, *, field: str = "pathways_service") -> str | None:
    """Returns None, or ``host:port`` with a port from 1 to 65535 and no scheme."""
    if value is None:
        return None
    expected = "host:port without a scheme, with a port from 1 to 65535"
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 1 <= int(match["port"]) <= 65535:
        raise InvalidRequestError(field, value, expected)
    if not match["host"].startswith("[") and not _HOST.fullmatch(match["host"]):
        raise InvalidRequestError(field, value, expected)
    return match[0]


def check_proxy_job_name(value: object, *, field: str = "proxy_job_name") -> str:
    """Returns a DNS label that leaves room for the suffix that Kubernetes appends for the pod."""
    return check_dns_label(
        field,
        value,
        limit=PROXY_JOB_NAME_LIMIT,
        why=f"its pod's name, of at most {DNS_LABEL_LIMIT}, has '-xxxxx' appended",
    )


def default_proxy_job_name(user: str, suffix: str) -> str:
    """Returns ``isc-proxy-USER-SUFFIX``, a valid name for any user, with a random suffix.

    Characters of the user name that are not allowed in a DNS label are replaced or omitted.
    """
    if not _SUFFIX.fullmatch(suffix):
        raise ValueError(f"suffix={suffix!r} must be 1 to 16 lower-case letters or digits")
    room = PROXY_JOB_NAME_LIMIT - len(f"isc-proxy--{suffix}")
    label = re.sub(r"[^a-z0-9]+", "-", user.lower()).strip("-")[:room].strip("-")
    return f"isc-proxy-{label or 'user'}-{suffix}"


def check_bucket(value: object, *, field: str = "gcs_bucket") -> str | None:
    """Returns None, or ``gs://name[/path]`` with a valid name of a Cloud Storage bucket.

    The scheme may be left out, as in upstream's examples.
    """
    if value is None:
        return None
    match = None
    if isinstance(value, str):
        match = _BUCKET.fullmatch(value if _ANY_SCHEME.match(value) else f"gs://{value}")
    if match is None:
        raise InvalidRequestError(
            field, value, "gs://NAME or gs://NAME/PATH, or the same without gs://"
        )
    name = match["name"]
    sizes = (
        len(name) <= 222 and all(1 <= len(part) <= 63 for part in name.split("."))
        if "." in name
        else len(name) <= 63
    )
    if len(name) < 3 or not sizes or not _BUCKET_NAME.fullmatch(name):
        raise InvalidRequestError(
            field, value, "a bucket's name of 3 to 63 characters out of a-z, 0-9, '-', '_' and '.'"
        )
    if name.startswith("goog") or "google" in name or _IP_ADDRESS.fullmatch(name):
        raise InvalidRequestError(
            field, value, "a bucket's name that does not name Google and is no IP address"
        )
    return match[0]


def check_object_store(value: object, *, field: str) -> str:
    """Returns ``gs://NAME[/PATH]`` or ``s3://NAME[/PATH]``, without a slash at its end."""
    if not isinstance(value, str) or not _OBJECT_STORE.fullmatch(value):
        raise InvalidRequestError(field, value, "gs://NAME[/PATH] or s3://NAME[/PATH]")
    return value.rstrip("/")


def check_proxy_image(value: object, *, default: str) -> str:
    """Returns a container image's name; for None and an empty text, the default.

    The default of upstream's `connect` is None, that of its `run_workload` an empty text.
    """
    return default if value is None or value == "" else check_image(value)


def check_image(value: object, *, field: str = "proxy_server_image") -> str:
    """Returns a container image's name, with tag or digest."""
    if isinstance(value, str) and _IMAGE.fullmatch(value):
        return value
    raise InvalidRequestError(field, value, "a container image, e.g. REGISTRY/NAME:TAG")


def check_keep_for(field: str, value: object) -> float:
    """Returns for how many seconds a proxy may be kept: a number, or a text such as ``30m``."""
    return check_duration(field, value, low=SHORTEST_KEEP_FOR_S, high=LONGEST_LIFETIME_S)


def check_subdomain(field: str, value: object) -> str:
    """Returns a DNS subdomain (RFC 1123), the form of most object names in a cluster."""
    if isinstance(value, str) and _SUBDOMAIN.fullmatch(value):
        return value
    raise InvalidRequestError(field, value, "a name of a-z, 0-9, '-' and '.', e.g. low-priority")


def check_labels(value: object, *, field: str = "labels") -> Mapping[str, str]:
    """Returns a copy of labels in Kubernetes' syntax, which may not include our own labels.

    The only exception is ``sps.dev/team``.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequestError(field, value, "a mapping of texts to texts")
    for key, text in value.items():
        _check_label_key(field, key)
        if not isinstance(text, str) or (text and not _LABEL_NAME.fullmatch(text)):
            raise InvalidRequestError(
                field,
                text,
                f"at most 63 letters, digits, '-', '_' and '.' as the value of {key!r}, "
                "a letter or digit at each end",
            )
    return dict(value)


def _check_label_key(field: str, key: object) -> None:
    prefix, slash, name = key.rpartition("/") if isinstance(key, str) else ("", "", "")
    valid = _LABEL_NAME.fullmatch(name) and (not slash or _SUBDOMAIN.fullmatch(prefix))
    if not isinstance(key, str) or not valid:
        raise InvalidRequestError(field, key, "keys of the form NAME or DOMAIN/NAME")
    own = key in _OWN_LABELS or key.startswith(_OWN_PREFIX)
    if own and key != TEAM_LABEL:
        raise InvalidRequestError(
            field, key, f"keys that this package does not set itself, or {TEAM_LABEL}"
        )
