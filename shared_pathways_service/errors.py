"""Every error that this package raises on purpose.

    SharedPathwaysError
    ├── InvalidRequestError (also a ValueError)   the request itself is wrong; nothing was started
    ├── PreflightError                            the service cannot take the request now
    │   ├── AccessDenied
    │   ├── ServiceNotFound
    │   ├── ServiceNotReady
    │   └── VersionSkew
    ├── CapacityError                             the slices are not to be had
    │   ├── SlicesTaken
    │   └── PlacementTimeout
    ├── ProxyFailed                               the proxy ended, or never began to serve
    ├── CredentialsMismatch                       client and proxy use different gRPC credentials
    ├── TunnelError                               the way to the proxy broke
    ├── SliceLost                                 a slice went away under running work
    ├── ConnectionClosed                          the connection was used after it ended
    └── CleanupError                              something could not be taken down

Each has a ``message`` (what happened, and where), a ``hint`` (what to do next, may be empty), and
the fields listed with it, so that a program need not read the text. An error of a library is
translated once, where it enters; the original stays as ``__cause__``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

__all__ = [
    "AccessDenied",
    "CapacityError",
    "CleanupError",
    "ConnectionClosed",
    "CredentialsMismatch",
    "InvalidRequestError",
    "PlacementTimeout",
    "PreflightError",
    "ProxyFailed",
    "ServiceNotFound",
    "ServiceNotReady",
    "SharedPathwaysError",
    "SliceLost",
    "SlicesTaken",
    "TunnelError",
    "VersionSkew",
    "from_json",
]


class SharedPathwaysError(Exception):
    """Base of all errors of this package.

    Attributes:
      message: What happened, and where; one line where one line does.
      hint: What to do next; empty when there is nothing sensible to say.
    """

    #: Names of the constructor's further fields: what `to_json` carries.
    fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return from_json, (self.to_json(),)

    def to_json(self) -> dict[str, Any]:
        """Returns the error as plain data; `from_json` makes an equal error of it."""
        data: dict[str, Any] = {"type": type(self).__name__, "message": self.message}
        data["hint"] = self.hint
        data.update({name: getattr(self, name) for name in self.fields})
        return data


class InvalidRequestError(SharedPathwaysError, ValueError):
    """A field of the request has a value that can never be right.

    Attributes:
      field: The argument, option or variable, as the user wrote it.
      value: What was given (as text when it came from another process).
      expected: What would be right.
    """

    fields = ("field", "value", "expected")

    def __init__(
        self, field: str, value: object, expected: str, *, message: str = "", hint: str = ""
    ) -> None:
        super().__init__(
            message or f"{field}={value!r} is not valid: expected {expected}", hint=hint
        )
        self.field = field
        self.value = value
        self.expected = expected

    def to_json(self) -> dict[str, Any]:
        """As for every error, with the value as text if JSON has no form for it."""
        data = super().to_json()
        if not isinstance(self.value, str | int | float | bool | None):
            data["value"] = repr(self.value)
        return data


class PreflightError(SharedPathwaysError):
    """The service cannot take the request now; nothing was created."""


class AccessDenied(PreflightError):  # noqa: N818 - reads as what happened, like PermissionError's kin
    """The user may not do what the request needs.

    Attributes:
      verb: What was tried, e.g. ``create``, or ``connect`` for a token that is refused.
      resource: On what, e.g. ``jobs``.
      namespace: Where; empty outside Kubernetes.
      rule: What would grant it.
    """

    fields = ("verb", "resource", "namespace", "rule")

    def __init__(
        self,
        message: str,
        *,
        verb: str = "",
        resource: str = "",
        namespace: str = "",
        rule: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.verb = verb
        self.resource = resource
        self.namespace = namespace
        self.rule = rule


class ServiceNotFound(PreflightError):  # noqa: N818
    """There is no service of that address.

    Attributes:
      service: The address that was looked for; empty when any would have done.
      candidates: Addresses of the services that were found instead.
    """

    fields = ("service", "candidates")

    def __init__(
        self, message: str, *, service: str = "", candidates: Sequence[str] = (), hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.service = service
        self.candidates = tuple(candidates)


class ServiceNotReady(PreflightError):  # noqa: N818
    """The service is there and does not serve (yet).

    Attributes:
      ready: Slices that are ready.
      wanted: Slices that the service should have.
      pods: What is not ready, each with the reason.
    """

    fields = ("ready", "wanted", "pods")

    def __init__(
        self,
        message: str,
        *,
        ready: int = 0,
        wanted: int = 0,
        pods: Sequence[str] = (),
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.ready = ready
        self.wanted = wanted
        self.pods = tuple(pods)


class VersionSkew(PreflightError):  # noqa: N818
    """Client and service have no version in common.

    Attributes:
      client: The client's version or range of versions.
      service: The service's.
    """

    fields = ("client", "service")

    def __init__(
        self, message: str, *, client: str = "", service: str = "", hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.client = client
        self.service = service


class CapacityError(SharedPathwaysError):
    """What was asked for is not to be had now: slices, room in a quota, one more session."""


class SlicesTaken(CapacityError):  # noqa: N818
    """Other tenants hold the slices.

    Attributes:
      wanted: Slices asked for, by instance type.
      free: Slices that could be granted now, by instance type.
      holders: Who holds slices, as ``user@host: 2 x tpuv6e:2x2``.
      position: Place in the queue reached, counted from 1; None if the request did not queue.
      spares: Slices that the service keeps as spares, by instance type, where the request would
        have been granted with them; otherwise empty.
    """

    fields = ("wanted", "free", "holders", "position", "spares")

    def __init__(
        self,
        message: str,
        *,
        wanted: Mapping[str, int] | None = None,
        free: Mapping[str, int] | None = None,
        holders: Sequence[str] = (),
        position: int | None = None,
        spares: Mapping[str, int] | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.wanted = dict(wanted or {})
        self.free = dict(free or {})
        self.holders = tuple(holders)
        self.position = position
        self.spares = dict(spares or {})


class PlacementTimeout(CapacityError):  # noqa: N818
    """The slices were not all placed in time.

    Attributes:
      placed: Virtual slices placed.
      wanted: Virtual slices that had to be.
      last_line: The last line of the proxy's log, or the last event.
      holders: Who holds slices, as in `SlicesTaken`.
    """

    fields = ("placed", "wanted", "last_line", "holders")

    def __init__(
        self,
        message: str,
        *,
        placed: int = 0,
        wanted: int = 0,
        last_line: str = "",
        holders: Sequence[str] = (),
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.placed = placed
        self.wanted = wanted
        self.last_line = last_line
        self.holders = tuple(holders)


class ProxyFailed(SharedPathwaysError):  # noqa: N818
    """The proxy ended, or never began to serve.

    Attributes:
      exit_code: Its exit code; negative for a signal; None when it is not known.
      log_tail: The last lines of its log.
    """

    fields = ("exit_code", "log_tail")

    def __init__(
        self,
        message: str,
        *,
        exit_code: int | None = None,
        log_tail: Sequence[str] = (),
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code
        self.log_tail = tuple(log_tail)


class CredentialsMismatch(SharedPathwaysError):  # noqa: N818
    """Client and proxy use different gRPC credentials: one speaks plaintext, the other does not.

    Attributes:
      client: The client's setting, as ``VARIABLE=value``.
      proxy: The proxy's, as far as its behaviour shows it.
    """

    fields = ("client", "proxy")

    def __init__(self, message: str, *, client: str = "", proxy: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.client = client
        self.proxy = proxy


class TunnelError(SharedPathwaysError):
    """The way from this machine to the proxy broke.

    Attributes:
      pod: The pod, or the socket, at the far end.
      cause: What broke it.
    """

    fields = ("pod", "cause")

    def __init__(self, message: str, *, pod: str = "", cause: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.pod = pod
        self.cause = cause


class SliceLost(SharedPathwaysError):  # noqa: N818
    """One or more slices went away under running work.

    Attributes:
      slices: Indices of the virtual slices.
      reason: Why, as the service tells it.
    """

    fields = ("slices", "reason")

    def __init__(
        self, message: str, *, slices: Sequence[int] = (), reason: str = "", hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.slices = tuple(slices)
        self.reason = reason


class ConnectionClosed(SharedPathwaysError):  # noqa: N818
    """The connection was used after it had ended."""


class CleanupError(SharedPathwaysError):
    """Something could not be taken down.

    Attributes:
      left: What is still there.
      command: The command that finishes the work.
    """

    fields = ("left", "command")

    def __init__(
        self, message: str, *, left: Sequence[str] = (), command: str = "", hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.left = tuple(left)
        self.command = command


_TYPES: dict[str, type[SharedPathwaysError]] = {
    cls.__name__: cls
    for cls in (
        SharedPathwaysError,
        InvalidRequestError,
        PreflightError,
        AccessDenied,
        ServiceNotFound,
        ServiceNotReady,
        VersionSkew,
        CapacityError,
        SlicesTaken,
        PlacementTimeout,
        ProxyFailed,
        CredentialsMismatch,
        TunnelError,
        SliceLost,
        ConnectionClosed,
        CleanupError,
    )
}


def from_json(data: Mapping[str, Any]) -> SharedPathwaysError:
    """Makes the error that `SharedPathwaysError.to_json` described.

    Args:
      data: The plain data; a type that this version does not know becomes the base class.

    Returns:
      The error, equal in type, message, hint and fields.
    """
    cls = _TYPES.get(str(data.get("type")), SharedPathwaysError)
    kwargs = {name: data[name] for name in cls.fields if name in data}
    return cls(message=data["message"], hint=data.get("hint", ""), **kwargs)
