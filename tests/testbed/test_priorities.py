"""A tenant names a PriorityClass of the cluster, and says how long it will stay."""

from __future__ import annotations

import asyncio
import secrets
from datetime import datetime

import pytest

from harness.programs import program
from harness.testbed.clients import PRELUDE, client, deployed, nothing_left
from shared_pathways_service.cli.lookups.place_readers import manager_of
from shared_pathways_service.cli.options.cluster_options import Place
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.testing.testbed import Namespace
from shared_pathways_service.testing.testbed.audit import AUDIT_LOG, read_audit_log
from tests.testbed.roles import rendered_user

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
LIFETIME_S = 3600.0
HOLDER = """
one = {"tpuv6e:2x2": 1}
try:
    connecting(expected_tpu_instances=one, priority="pressing").start()
except errors.InvalidRequestError as error:
    say("refused", field=error.field, expected=error.expected)
with connecting(
    expected_tpu_instances=one, priority="%s", max_lifetime=%s
) as connection:
    say("holds", name=connection.proxy_job_name)
    wait_for("leave")
"""
POOR = """
one = {"tpuv6e:2x2": 1}
try:
    connecting(expected_tpu_instances=one, priority="%s").start()
except errors.AccessDenied as error:
    say("denied", resource=error.resource, hint=error.hint)
with connecting(expected_tpu_instances=one, priority="high-priority-job") as connection:
    say("holds", name=connection.proxy_job_name)
    wait_for("leave")
"""


def tenants(namespace: Namespace) -> dict[str, pb.TenantStatus]:
    """Returns who the resource manager knows."""

    async def ask() -> dict[str, pb.TenantStatus]:
        place = Place(context="testbed", namespace=namespace.name)
        async with manager_of(place, Settings.load()) as manager:
            status = await manager.status()
            return {tenant.name: tenant for tenant in status.tenants}

    return asyncio.run(ask())


def jobs_of(namespace: Namespace, user: str) -> int:
    """Returns how many Jobs a user has created."""
    asked = read_audit_log(namespace.testbed.directory / AUDIT_LOG, user)
    return len([one for one in asked if (one.verb, one.resource) == ("create", "jobs")])


def test_the_clusters_value_counts_and_the_lifetime_arrives(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed(namespace)
    name = f"urgent-{secrets.token_hex(4)}"
    namespace.testbed.api.create(CLASSES, {"metadata": {"name": name}, "value": 4321})
    try:
        environment = rendered_user(namespace, "tenant")
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        source = PRELUDE + HOLDER % (name, LIFETIME_S)
        with program(source, env=environment) as holder, client(namespace, POOR % name) as poor:
            refused = holder.expect("refused")
            assert refused["field"] == "priority"
            assert name in refused["expected"]
            denied = poor.expect("denied")
            assert denied["resource"] == "priorityclasses"
            assert "high-priority-job" in denied["hint"]
            # Refused before there was anything: these are the only ones that there ever were.
            held = {holder.expect("holds")["name"]: 4321, poor.expect("holds")["name"]: 2_000_000}
            known = tenants(namespace)
            assert {tenant: one.priority for tenant, one in known.items()} == held
            mine, other = (known[tenant] for tenant in held)
            for role in ("tenant", "rendered-tenant"):
                assert jobs_of(namespace, f"{namespace.name}-{role}") == 1
            stays = datetime.fromisoformat(mine.ends) - datetime.fromisoformat(mine.since)
            assert abs(stays.total_seconds() - LIFETIME_S) < LIFETIME_S / 2
            assert not other.ends
            for running in (holder, poor):
                running.tell("leave")
                assert running.wait() == 0
        nothing_left(namespace)
    finally:
        namespace.testbed.api.delete(f"{CLASSES}/{name}")
