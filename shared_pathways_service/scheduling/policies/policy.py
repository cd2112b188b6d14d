"""The base class of policies, which consume changes of the book and return actions.

The core is created with a list of policies, and runs without any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeAlias, TypeVar

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.scheduling.book.actions import Actions
from shared_pathways_service.scheduling.book.changes import Change, Consumer
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.deadlines import Deadlines
from shared_pathways_service.scheduling.book.holdings import IdleStatus
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.persisted import PersistedGrant, Restored
from shared_pathways_service.scheduling.book.records import Pool, Tenant

__all__ = ["MakePolicy", "Policy", "overrides"]

P = ParamSpec("P")
R = TypeVar("R")


class Policy:
    """Base of all policies; a policy overrides the methods that concern it.

    A policy reads the book and changes nothing but its own state. Methods that return actions may
    be generators: each action is carried out before the next one is asked for, so that a generator
    sees the book as it is by then.

    Attributes:
      parks_tenants: Whether it queues tenants again that were parked before a restart.
    """

    # ruff: noqa: ARG002 - the arguments are for policies that override a method

    parks_tenants: ClassVar[bool] = False

    @property
    def consumes(self) -> Mapping[type[Change], Consumer]:
        """The changes that this policy consumes, each with a function that notes it."""
        return {}

    @property
    def events(self) -> Mapping[type, Callable[[Any], Actions]]:
        """The events from outside that this policy handles."""
        return {}

    # ---- a restart

    def begin(self, restored: Restored) -> Actions:
        """Restores the persisted state of this policy, before any tenant is restored."""
        return ()

    def restored(self, tenant: Tenant, grant: PersistedGrant) -> None:
        """Restores the persisted state of a tenant, before it is queued."""

    # ---- tenants

    def forbids(self, request: TenantRequest) -> str:
        """Returns why a new tenant must be refused, in words; empty: it need not be."""
        return ""

    def returned(self, tenant: Tenant) -> Actions:
        """Resumes steps that waited for a tenant's proxy, which has connected again."""
        return ()

    def greeted(self, tenant: Tenant) -> Actions:
        """Notifies a tenant whose proxy has connected and was welcomed."""
        return ()

    def idle_status(self, tenant: Tenant, now: float) -> IdleStatus | None:
        """Returns how idle a tenant is; None: that is not known."""
        return None

    # ---- the free slices of a pool, in the order in which the placement calls

    def serve_first(self, pool: Pool) -> Actions:
        """Uses free slices of a pool before any waiting tenant."""
        return ()

    def serve_owners(self, pool: Pool) -> Actions:
        """Gives free slices of a pool to tenants that have a right to them, before its line."""
        return ()

    def relieve(self, tenant: Tenant, pool: Pool) -> Actions | None:
        """Gives free slices to a tenant that has a promise; None: it needs none of them."""
        return None

    def serve_rest(self, pool: Pool) -> Actions:
        """Uses free slices that the first tenants in line cannot use."""
        return ()

    # ---- after the placement

    def act(self) -> Actions | None:
        """Returns the next step, after which all pools are served again; None: there is none."""
        return None

    def conclude(self) -> Actions:
        """Notifies tenants of the combined result of all steps."""
        return ()

    def refuse(self) -> Actions | None:
        """Refuses a waiting tenant, after which all pools are served again; None: none is."""
        return None

    # ---- tests

    def validate(self, *, recovering: bool) -> None:
        """Raises AssertionError where the policy's state contradicts the book."""


#: Makes a policy of one core: its class.
MakePolicy: TypeAlias = Callable[[RmConfig, Ledger, Deadlines], Policy]


def overrides(
    policies: Sequence[Policy], method: Callable[Concatenate[Policy, P], R]
) -> Sequence[Callable[P, R]]:
    """Returns a method of each policy that overrides it: most events concern few policies."""
    name = method.__name__
    return [getattr(one, name) for one in policies if getattr(type(one), name) is not method]
