"""A token, or a permission, ends while a connection over plain port-forwards lasts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.deadlines import wait_until
from harness.programs import program
from harness.testbed.clients import PRELUDE, deployed, journal, nothing_left, proxies
from shared_pathways_service.manifests.permissions import granting_rules, needed
from shared_pathways_service.testing.testbed import ApiRefused, Namespace, User
from tests.testbed.logins import Laptop

pytestmark = pytest.mark.race

PORT_FORWARD = "pods/portforward"

#: Asks the API server for something (logs), and has a way to the proxy of its own dialled.
CLIENT = """
import asyncio
from shared_pathways_service.protocol.ifrt.probe import probe_async
def dial():
    address = connection.address.removeprefix("grpc://")
    try:
        asyncio.run(probe_async(address, 30.0))
    except errors.ServiceNotReady as error:
        return str(error)
    return "answers"
def logs():
    try:
        return len(connection.logs())
    except errors.AccessDenied as error:
        return error.to_json()
try:
    with connecting(expected_tpu_instances={"tpuv6e:2x2": 1}, link="plain") as connection:
        import jax.numpy as jnp
        x = jnp.ones(3)
        say("serving", name=connection.proxy_job_name)
        wait_for("go on")
        say("went on", logs=logs(), dial=dial())
        wait_for("leave")
        say("value", value=float(x.sum()))
except errors.SharedPathwaysError as error:
    say("failed", error=error.to_json(), notes=getattr(error, "__notes__", []))
else:
    say("left")
"""


@pytest.fixture
def served(namespace: Namespace) -> Namespace:
    deployed(namespace, 1)
    return namespace


@pytest.mark.timeout(600)
def test_a_token_or_a_permission_that_ends(served: Namespace, own_directories: Path) -> None:
    own_directories.mkdir(exist_ok=True)
    laptop = Laptop(served, own_directories)
    for kind in ("exec", "file"):
        goes_on_with_a_fresh_one(served, laptop, kind)
    says_so_where_there_is_none(served, laptop)
    says_so_of_a_permission_that_is_taken_back(served, laptop)


def goes_on_with_a_fresh_one(namespace: Namespace, laptop: Laptop, kind: str) -> None:
    laptop.log_in(kind, laptop.user)
    with program(PRELUDE + CLIENT, env=laptop.variables) as running:
        running.expect("serving")
        laptop.log_in(kind, laptop.renew())
        running.tell("go on")
        went_on = running.expect("went on")
        assert isinstance(went_on["logs"], int), went_on
        assert went_on["logs"] > 0
        assert went_on["dial"] == "answers"
        running.tell("leave")
        assert running.expect("value")["value"] == 3.0
        running.expect("left")
        assert running.wait() == 0
    nothing_left(namespace)


def says_so_where_there_is_none(namespace: Namespace, laptop: Laptop) -> None:
    laptop.log_in("static", laptop.user)
    fresh: list[User] = []
    told, error = ends_by(namespace, laptop, lambda: fresh.append(laptop.renew()))
    assert told["logs"]["type"] == "AccessDenied"
    assert (told["logs"]["verb"], told["logs"]["resource"]) == ("connect", "cluster")
    assert "does not take our credentials" in error["message"]
    assert (error["verb"], error["resource"]) == ("connect", "cluster")
    assert error["hint"] == "log in again"
    laptop.log_in("static", fresh[0])
    is_swept_by_the_next(namespace, laptop)


def says_so_of_a_permission_that_is_taken_back(namespace: Namespace, laptop: Laptop) -> None:
    role = namespace.path("rbac.authorization.k8s.io/v1/roles", f"testbed-{laptop.user.name}")
    all_rules = granting_rules(needed(ours=True))
    kept = [rule for rule in all_rules if rule["resources"] not in (["jobs"], [PORT_FORWARD])]
    reading = {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "watch"]}

    def take_back() -> None:
        namespace.testbed.api.patch(role, {"rules": [*kept, reading]})
        pod = namespace.items("pods", labelSelector="app=pathways-proxy")[0]["metadata"]["name"]
        path = namespace.path("pods", f"{pod}/portforward")

        def refused() -> bool:
            try:
                namespace.testbed.api_of(laptop.user).request("POST", path)
            except ApiRefused as error:
                return error.status == 403
            return False

        wait_until("the API server to know the new rules", refused)

    told, error = ends_by(namespace, laptop, take_back)
    assert isinstance(told["logs"], int)
    assert (error["verb"], error["resource"]) == ("create", PORT_FORWARD)
    assert error["namespace"] == namespace.name
    assert f'"resources": ["{PORT_FORWARD}"], "verbs": ["create"]' in error["rule"]
    namespace.testbed.api.patch(role, {"rules": all_rules})
    is_swept_by_the_next(namespace, laptop)


def ends_by(
    namespace: Namespace, laptop: Laptop, fault: Callable[[], object]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Has a session that may not be deleted any more; returns what was told, and its error."""
    with program(PRELUDE + CLIENT, env=laptop.variables) as running:
        name = running.expect("serving")["name"]
        fault()
        running.tell("go on")
        went_on = running.expect("went on")
        assert went_on["dial"] != "answers"
        running.tell("leave")
        failed = running.expect("failed")
        error: dict[str, Any] = failed["error"]
        assert error["type"] == "AccessDenied"
        assert f"the session of {name} cannot go on" in error["message"]
        # What is left is said, with the command that takes it down.
        [note] = failed["notes"]
        assert f"sps delete {name}" in note
        assert running.wait() == 0
    assert [entry.name for entry in journal()] == [name]
    assert proxies(namespace)
    return went_on, error


def is_swept_by_the_next(namespace: Namespace, laptop: Laptop) -> None:
    """Connects once more, by which what was left is taken down."""
    with program(PRELUDE + CLIENT, env=laptop.variables) as running:
        running.expect("serving")
        for word in ("go on", "leave"):
            running.tell(word)
        for word in ("went on", "value", "left"):
            running.expect(word)
    nothing_left(namespace)
