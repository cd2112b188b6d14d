"""Reservations, and the interface of the reservations of one instance type for the book."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.events import rfc3339

__all__ = ["Reservation", "Reserved", "moment"]

#: A tenant.
T_contra = TypeVar("T_contra", contravariant=True)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """Slices of a type that are reserved for a user or a team during a time window.

    Attributes:
      name: Its name.
      instance_type: As text.
      count: Number of slices.
      user: The owner; empty: a team is.
      team: The owner; empty: a user is.
      starts: The start of the window, by the core's clock.
      ends: The end of the window.
    """

    name: str
    instance_type: str
    count: int
    user: str
    team: str
    starts: float
    ends: float

    @property
    def owner(self) -> str:
        """The owner, in words."""
        return f"user {self.user}" if self.user else f"team {self.team}"

    @property
    def said(self) -> str:
        """The window and the owner, in words."""
        return f"for {self.owner} from {moment(self.starts)} until {moment(self.ends)}"

    def is_for(self, request: TenantRequest) -> bool:
        """Whether a tenant belongs to the owner."""
        return request.user == self.user if self.user else request.team == self.team

    def holds_at(self, when: float) -> bool:
        """Whether it is in force at a time."""
        return self.starts <= when < self.ends


class Reserved(Protocol[T_contra]):
    """Computes what the reservations of a pool leave to each tenant."""

    @property
    def entries(self) -> Sequence[Reservation]:
        """Reservations of users before those of teams, then in the order of their starts."""

    def room_for(self, tenant: T_contra) -> int:
        """Returns how many free slices a tenant may take."""

    def own_room(self, tenant: T_contra) -> int:
        """Returns how many free slices are reserved for a tenant, whatever its place in line."""

    def room_beside(self, tenant: T_contra, running: T_contra) -> int:
        """Returns how many free slices a tenant may take before an elastic slice of another."""

    def most_for(self, tenant: T_contra) -> int:
        """Returns how many slices a tenant may have once no other tenant holds any."""

    def barred_until(self, tenant: T_contra, wanted: int) -> float:
        """Returns the time before which a tenant cannot have `wanted` slices; -inf: it can now."""

    def moments(self, tenant: T_contra) -> Iterable[float]:
        """Returns now, and when others' reservations end within a tenant's stated lifetime."""

    def room_of(self, in_service: int, tenant: T_contra, when: float) -> int:
        """Returns how many of the slices in service a tenant may have if no other holds any."""

    def short_until(self, tenant: T_contra) -> float:
        """Returns until when a running tenant cannot have one more; -inf: it can now."""

    def shelters(self, tenant: T_contra) -> bool:
        """Whether a reservation keeps a tenant from being preempted."""

    def holders_changed(self) -> None:
        """Forgets results that depend on the holders of slices and on the time."""

    def held(self, of: Reservation) -> int:
        """Returns how many slices of a reservation its owner holds."""

    def words(self) -> str:
        """Describes the reservations for waiting tenants."""


def moment(when: float) -> str:
    """Formats a time for people: RFC 3339, to the second."""
    return f"{rfc3339(when).partition('.')[0].removesuffix('Z')}Z"
