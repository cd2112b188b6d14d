"""connect(api_client=…): a program without a kubeconfig, whose token changes meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from harness.deadlines import deadline, wait_until
from harness.programs import program
from harness.testbed.clients import KIND, deployed, home_of, journal, nothing_left
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.testing.testbed import Namespace
from tests.testbed.logins import Laptop
from tests.testbed.second_reader import is_read_by_the_official_client

pytestmark = pytest.mark.race

CLIENT = f"""
import pathlib
from kubernetes import client as official
hooked = []
def renew(configuration):
    hooked.append(threading.current_thread().name)
    configuration.api_key["authorization"] = pathlib.Path(os.environ["TEST_TOKEN"]).read_text()
configuration = official.Configuration(host=os.environ["TEST_SERVER"])
configuration.ssl_ca_cert = os.environ["TEST_AUTHORITY"]
configuration.api_key = {{"authorization": "none yet"}}
configuration.api_key_prefix = {{"authorization": "Bearer"}}
configuration.refresh_api_key_hook = renew
def connecting():
    return isc_pathways.connect(
        api_client=official.ApiClient(configuration), namespace=os.environ["TEST_NAMESPACE"],
        expected_tpu_instances={{"{KIND}": 1}}, timeout={deadline(90.0)})
with connecting() as connection:
    import jax.numpy as jnp
    x = jnp.ones(3)
    say("serving", name=connection.proxy_job_name, hooked=hooked,
        same=connecting().start() is connection)
    wait_for("go on")
    say("went on", logs=len(connection.logs()), hooked=hooked)
    wait_for("leave")
    say("value", value=float(x.sum()))
say("left", threads=[t.name for t in threading.enumerate() if t.name.startswith("sps")])
"""


@pytest.fixture
def served(namespace: Namespace) -> Iterator[Namespace]:
    deployed(namespace, 1)
    yield namespace
    nothing_left(namespace)


@pytest.fixture
def laptop(served: Namespace, own_directories: Path) -> Laptop:
    own_directories.mkdir(exist_ok=True)
    return Laptop(served, own_directories)


def variables(laptop: Laptop, namespace: Namespace, token: Path) -> Mapping[str, str]:
    """Returns those of a program whose user has no kubeconfig."""
    token.write_text(laptop.user.token)
    testbed = namespace.testbed
    return {
        "HOME": home_of(),
        "KUBECONFIG": str(token.with_name("no-kubeconfig")),
        "TEST_NAMESPACE": namespace.name,
        "TEST_SERVER": testbed.server,
        "TEST_AUTHORITY": str(testbed.authority),
        "TEST_TOKEN": str(token),
    }


def test_a_token_that_changes(served: Namespace, laptop: Laptop, own_directories: Path) -> None:
    token = own_directories / "program-token"
    first = laptop.user.token
    with program(CLIENT, env=variables(laptop, served, token)) as running:
        serving = running.expect("serving")
        assert serving["hooked"][0] == "MainThread"
        assert serving["same"]
        is_read_by_the_official_client(served, serving["name"])
        fresh = laptop.renew()
        token.write_text(fresh.token)
        running.tell("go on")
        went_on = running.expect("went on")
        assert went_on["logs"] > 0
        assert "sps-login" in went_on["hooked"]
        [entry] = journal()
        assert entry.home.options["server"] == served.testbed.server
        for path in Settings.load().state_dir.rglob("*"):
            content = path.read_bytes() if path.is_file() else b""
            assert not any(secret.encode() in content for secret in (first, fresh.token)), path
        running.tell("leave")
        assert running.expect("value")["value"] == 3.0
        assert running.expect("left")["threads"] == []
        assert running.wait() == 0


def test_a_program_that_is_killed(served: Namespace, laptop: Laptop, own_directories: Path) -> None:
    """Its agent has the last token, with which it deletes the proxy."""
    token = own_directories / "program-token"
    with program(CLIENT, env=variables(laptop, served, token)) as running:
        running.expect("serving")
        assert journal()
        running.signal(signal.SIGKILL)
        nothing_left(served)


def test_an_agent_that_is_killed(served: Namespace, laptop: Laptop, own_directories: Path) -> None:
    """The next agent, which deletes the proxy, gets the program's present login."""
    token = own_directories / "program-token"
    with program(CLIENT, env=variables(laptop, served, token)) as running:
        running.expect("serving")
        token.write_text(laptop.renew().token)
        [entry] = journal()
        os.kill(entry.agent.pid, signal.SIGKILL)
        wait_until("the agent's end", entry.agent.has_ended)
        running.tell("go on")
        assert running.wait() == 1
        assert journal() == []
