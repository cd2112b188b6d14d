"""`sps verify` on the embedded service: what passes, what fails, and what it leaves behind."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from harness.embedded import KIND, embedded, eventually, nothing_left
from harness.layers.thorough import thorough
from harness.programs import DEADLINE_S, program, sps, sps_running, status
from shared_pathways_service.cli.options.cluster_options import Place
from shared_pathways_service.cli.verification import (
    CHECKS,
    Outcome,
    Result,
    Verification,
)
from shared_pathways_service.cli.verification.service_state import ServiceView, count_slices
from shared_pathways_service.cli.verification.tenant import Tenant
from shared_pathways_service.errors import ProxyFailed, SharedPathwaysError, SlicesTaken
from shared_pathways_service.operations.service_readers.embedded.embedded_reader import (
    EmbeddedReader,
)
from shared_pathways_service.runtime.settings import Settings

HOLDER = f"""
with isc_pathways.connect(expected_tpu_instances={{"{KIND}": 1}}) as connection:
    import jax.numpy as jnp
    kept = jnp.arange(4.0)
    say("holds", name=connection.proxy_job_name)
    wait_for("leave")
    say("left", value=float(kept.sum()))
"""


def outcomes(told: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["outcome"] for check in told["checks"]}


def test_all_checks_pass_beside_an_undisturbed_tenant() -> None:
    with embedded(3), program(HOLDER) as other:
        held = other.expect("holds")["name"]
        done = sps("verify", f"--slices={KIND}=2", "--json", check=False)
        told = json.loads(done.stdout)
        assert outcomes(told) == dict.fromkeys(CHECKS, "passed"), told
        assert (done.returncode, told["ok"]) == (0, True)
        found = {check["name"]: check["found"] for check in told["checks"]}
        assert found["connect"].startswith(f"2 x {KIND}, 8 chips")
        assert "after the first tenant left" in found["queue"]
        # Nobody else is there, and the other tenant has what it had.
        assert [tenant["name"] for tenant in status()["tenants"]] == [held]
        other.tell("leave")
        assert other.expect("left")["value"] == 6.0


@pytest.mark.parametrize("spares", [0, *thorough(1)])
def test_one_slice_is_not_enough_for_all_checks(spares: int) -> None:
    with embedded(1, spares):
        done = sps("verify", "--json", check=False)
        told = json.loads(done.stdout)
        skipped = {name for name, outcome in outcomes(told).items() if outcome != "passed"}
        assert skipped == {"second tenant"}, told
        assert told["slices"] == 1
        assert (done.returncode, told["ok"]) == (1, False)
        assert nothing_left()


def test_a_failure_has_a_hint_and_skips_the_rest() -> None:
    with embedded(1), program(HOLDER) as other:
        other.expect("holds")
        done = sps("verify", f"--slices={KIND}=1", f"--timeout={DEADLINE_S}", check=False)
        assert done.returncode == 1
        assert "failed   connect: No tpuv6e:2x2 slice is free (1 wanted)" in done.stderr
        assert "skipped  second tenant: the first tenant could not connect" in done.stderr
        assert "connect: look at" in done.stderr
        other.tell("leave")
        assert other.expect("left")["value"] == 6.0


def test_an_interrupt_ends_everything() -> None:
    with embedded(2), sps_running("verify", f"--slices={KIND}=2") as running:
        assert running.stderr is not None
        for line in running.stderr:
            if line.startswith("passed   connect"):
                break
        assert [len(tenant["slices"]) for tenant in status()["tenants"]] == [2]
        running.send_signal(signal.SIGINT)
        assert running.wait(DEADLINE_S) == 128 + signal.SIGINT
        eventually(nothing_left, "the end of the verification's tenants")


def test_bad_options_are_refused_before_anything_starts() -> None:
    for options, field in (
        (["--timeout=0"], "--timeout"),
        ([f"--slices={KIND}=1", "--slices=tpuv6e:4x4=1"], "--slices"),
    ):
        done = sps("verify", *options, check=False)
        assert done.returncode == 2
        assert field in done.stderr


@pytest.mark.parametrize(
    ("spares", "state", "expected"),
    [
        (None, "ready", (3, 2)),
        (1, "ready", (2, 1)),
        (1, "cordoned", (2, 1)),
        (0, "cordoned", (2, 1)),
        (0, "lost", (3, 1)),
        (1, "lost", (2, 0)),
        (None, "starting", (3, 1)),
    ],
)
def test_spares_and_unready_slices_are_not_free(
    spares: int | None, state: str, expected: tuple[int, int]
) -> None:
    slices = [
        {"instance_type": KIND, "state": "ready", "tenant": "ada"},
        {"instance_type": KIND, "state": "ready", "tenant": None},
        {"instance_type": KIND, "state": state, "tenant": None},
    ]
    tenant = {"name": "ada", "slices": [{"instance_type": KIND}]}
    status = {"service": {"spares": spares}, "slices": slices, "tenants": [tenant]}
    assert count_slices(status) == {KIND: expected}


class FakeService:
    """A service with slices of one type, and the fake tenants that hold them.

    Attributes:
      usable: Slices that it has.
      faults: By a tenant's number, in the order of their start: what its every order fails with.
      leaving: How often another tenant leaves one slice just after the slices were counted.
      most_held: The most slices that were held at one time.
    """

    def __init__(self, usable: int) -> None:
        self.usable = usable
        self.faults: dict[int, SharedPathwaysError] = {}
        self.leaving = 0
        self.most_held = 0
        self.tenants: list[FakeTenant] = []
        self.reader = EmbeddedReader(Settings.load())

    def checks(self, *_: object) -> list[object]:
        return []

    @property
    def held(self) -> int:
        return sum(tenant.held for tenant in self.tenants)

    def slices(self) -> dict[str, tuple[int, int]]:
        counted = {KIND: (self.usable, self.usable - self.held)}
        if self.leaving:
            self.leaving -= 1
            self.usable += 1
        return counted

    def wait_until_gone(self, names: set[str], _: float) -> None:
        assert not any(tenant.held for tenant in self.tenants if tenant.name in names)

    def start(self, name: str, arguments: dict[str, Any], **_: object) -> FakeTenant:
        wanted = arguments["expected_tpu_instances"][KIND]
        return FakeTenant(self, name, wanted, arguments.get("queue_timeout"))


class FakeTenant:
    """A tenant that holds its slices from its start to its end."""

    def __init__(
        self, service: FakeService, name: str, wanted: int, queue_timeout: float | None
    ) -> None:
        self.name = name
        self.held = 0
        self._service = service
        self._wanted = wanted
        self._queues = queue_timeout is not None
        self._fault = service.faults.get(len(service.tenants))
        service.tenants.append(self)
        self._take()

    def _take(self) -> bool:
        if not self.held and self._wanted <= self._service.usable - self._service.held:
            self.held = self._wanted
            self._service.most_held = max(self._service.most_held, self._service.held)
        return bool(self.held)

    def order(self, _: str) -> None:
        if self._fault:
            raise self._fault

    def expect(self, kind: str, _: float) -> dict[str, Any]:
        assert self._take(), f"{self.name} waits for slices"
        return {
            "kind": kind,
            "slices": self._wanted,
            "chips": 4 * self._wanted,
            "seconds": 1.0,
            "wrong": [],
            "right": True,
            "round_trip_s": 0.001,
            "to_device_bytes_per_s": 1e9,
            "from_device_bytes_per_s": 1e9,
        }

    def refusal(self, _: float) -> SharedPathwaysError | None:
        return None if self.held else SlicesTaken("taken")

    def waits_in_queue(self, _: float) -> bool:
        assert self._queues
        return not self.held

    def kill(self) -> None:
        self.close()

    def close(self) -> None:
        self.held = 0


def results_of(service: FakeService, *, count: int) -> dict[str, Result]:
    """Returns the results of all checks of a fake service, by the checks' names."""
    view, request = cast("ServiceView", service), Place().request()
    with Verification(
        view,
        request,
        {},
        kind=KIND,
        count=count,
        timeout_s=5.0,
        start_tenant=cast("Callable[..., Tenant]", service.start),
    ) as verification:
        return {result.name: result for result in verification.results(lambda _: None)}


def test_a_failed_check_ends_its_tenants() -> None:
    service = FakeService(usable=4)
    # (Before these: the first tenant, the refused one, the one that queues.)
    service.faults = {4: SharedPathwaysError("no answer")}
    results = results_of(service, count=2)
    failed = {name for name, result in results.items() if result.outcome is not Outcome.PASSED}
    assert failed == {"second tenant"}, results
    assert results["second tenant"].found == "no answer"
    assert service.most_held == 2
    assert service.held == 0


def test_a_proxy_that_failed_shows_the_end_of_its_log() -> None:
    service = FakeService(usable=4)
    failure = ProxyFailed("it ended", exit_code=1, log_tail=["E0 no port", "stopping"])
    service.faults = {4: failure}
    results = results_of(service, count=2)
    assert results["second tenant"].log_tail == ("E0 no port", "stopping")
    assert results["connect"].log_tail == ()


@pytest.mark.parametrize(
    ("leaving", "skipped"),
    [(1, set()), (2, set()), (3, {"refusal"}), (6, {"refusal", "queue"})],
)
def test_a_granted_request_is_ended_and_repeated(leaving: int, skipped: set[str]) -> None:
    service = FakeService(usable=2)
    service.leaving = leaving
    results = results_of(service, count=2)
    assert {
        name for name, result in results.items() if result.outcome is not Outcome.PASSED
    } == skipped, results
    for name in skipped:
        assert results[name].outcome is Outcome.SKIPPED
        assert "were granted" in results[name].found
        assert results[name].look_at
    assert service.held == 0


def test_a_granted_request_is_noticed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tenant imports nothing from the current directory.
    (tmp_path / "jax.py").write_text("raise SystemExit('imported by chance')")
    monkeypatch.chdir(tmp_path)
    with embedded(1):
        for wanted, queue_timeout in ((1, None), (1, 60.0), (2, None)):
            arguments = {"expected_tpu_instances": {KIND: wanted}, "queue_timeout": queue_timeout}
            name = f"verify-{wanted}-{queue_timeout is None}".lower()
            tenant = Tenant(name, arguments, log=tmp_path / name)
            try:
                if queue_timeout:
                    assert not tenant.waits_in_queue(DEADLINE_S)
                else:
                    error = tenant.refusal(DEADLINE_S)
                    assert (error is None) == (wanted == 1)
            finally:
                tenant.close()
            eventually(nothing_left, "the end of the tenant")
