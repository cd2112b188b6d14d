"""What the supervisor decides, without a process: use, restarts, requests, endings, logs."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.carriers import create_proxy
from shared_pathways_service.api.proxy_limits import ProxyLimits
from shared_pathways_service.constants import ENGINES
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.events import Event
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.flags.policies import policy_names
from shared_pathways_service.flags.supervisor import SupervisorOptions
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.runtime.embedded import log_directory as logs_module
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.log_directory import ServiceLogs, tail_of
from shared_pathways_service.runtime.embedded.server_environment import server_environment
from shared_pathways_service.runtime.processes import Identity, identity_of, place_name
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from shared_pathways_service.servers.resource_manager.flags import ResourceManagerOptions
from shared_pathways_service.servers.supervisor.command_lines import (
    proxy_arguments,
    resource_manager_command,
)
from shared_pathways_service.servers.supervisor.endings import read_exit_report, reason_of
from shared_pathways_service.servers.supervisor.occupancy import Occupancy
from shared_pathways_service.servers.supervisor.proxy_requests import read_proxy_request
from shared_pathways_service.servers.supervisor.restarts import SETTLED_S, RestartPolicy


class TestOccupancy:
    def test_ends_only_after_the_whole_time_without_users(self) -> None:
        occupancy = Occupancy(60, now=100)
        assert occupancy.deadline() == 160
        assert occupancy.enter()
        assert occupancy.deadline() == math.inf
        assert not occupancy.end_if_idle(10_000)
        occupancy.leave(200)
        assert not occupancy.end_if_idle(259)
        assert occupancy.end_if_idle(260)

    def test_a_join_before_the_decision_prevents_it_and_one_after_it_is_refused(self) -> None:
        occupancy = Occupancy(60, now=0)
        assert occupancy.enter()
        assert not occupancy.end_if_idle(60)
        occupancy.leave(60)
        assert occupancy.end_if_idle(120)
        assert not occupancy.enter()
        assert occupancy.ending

    def test_never_idles_without_a_limit(self) -> None:
        assert not Occupancy(math.inf, now=0).end_if_idle(1e12)

    @given(st.lists(st.tuples(st.sampled_from(["enter", "leave", "look"]), st.floats(0, 50))))
    def test_a_service_in_use_does_not_end(self, steps: list[tuple[str, float]]) -> None:
        occupancy, users, now = Occupancy(60, now=0), 0, 0.0
        for step, pause in steps:
            now += pause
            if step == "enter" and occupancy.enter():
                users += 1
            elif step == "leave" and users:
                occupancy.leave(now)
                users -= 1
            elif step == "look":
                assert not (occupancy.end_if_idle(now) and users)


class TestRestartPolicy:
    def test_one_crash_is_answered_at_once_and_a_loop_ever_slower(self) -> None:
        policy = RestartPolicy()
        assert policy.next_delay(SETTLED_S) == 0.0
        assert policy.next_delay(SETTLED_S) == 0.0, "a worker killed now and then"
        delays = [policy.next_delay(0.1) for _ in range(20)]
        assert delays[0] == 0.0
        assert delays == sorted(delays, key=lambda delay: delay or 0.0)
        assert delays[-1] == 10.0
        assert policy.next_delay(SETTLED_S) == 0.0, "it had settled"

    def test_the_limit_counts_all_restarts(self) -> None:
        policy = RestartPolicy(2)
        assert [policy.next_delay(100.0) for _ in range(3)] == [0.0, 0.0, None]
        assert RestartPolicy(0).next_delay(100.0) is None


RIGHT: dict[str, Any] = {"name": "a", "session": "s", "virtual_slices": ["tpuv6e:2x2"] * 2}
TYPES = ["tpuv6e:2x2", "tpuv5e:2x4"]
MOST = ProxyLimits(host_memory_limit_bytes=1000, max_handles=10)


class TestRequests:
    def test_what_is_left_out_has_defaults(self) -> None:
        request = read_proxy_request(create_proxy(name="a", session="s"), TYPES, MOST)
        assert list(map(str, request.tenant.virtual_slices)) == ["tpuv6e:2x2"]
        assert request.tenant.queue_timeout_s is None
        assert request.tcp_port is None
        assert request.tenant.max_lifetime_s is None
        assert request.limits == MOST

    def test_what_is_given_counts(self) -> None:
        message = create_proxy(
            **RIGHT, queue_timeout_s=math.inf, tcp_port=0, max_lifetime_s=3, elastic_slices=1
        )
        request = read_proxy_request(message, TYPES, MOST)
        assert request.tenant.queue_timeout_s == math.inf
        assert request.tcp_port == 0
        assert request.tenant.max_lifetime_s == 3
        assert request.tenant.elastic_slices == 1

    def test_lower_limits_are_given_and_higher_ones_are_not(self) -> None:
        # Where the operator has none, any is lower.
        asked = pb.ProxyLimits(device_memory_limit_bytes=5, max_handles=10)
        request = read_proxy_request(create_proxy(**RIGHT, limits=asked), TYPES, MOST)
        assert request.limits == dataclasses.replace(MOST, device_memory_limit_bytes=5)
        for name in ("host_memory_limit_bytes", "max_handles", "max_sessions"):
            most = getattr(MOST, name)
            asked = pb.ProxyLimits(**{name: most + 1})
            with pytest.raises(InvalidRequestError) as raised:
                read_proxy_request(create_proxy(**RIGHT, limits=asked), TYPES, MOST)
            assert raised.value.field == "proxy_options"
            assert raised.value.value == f"{name}:{most + 1}"
            assert f"at most {most}" in raised.value.expected
            assert f"--{name.replace('_', '-')}" in raised.value.expected
        asked = pb.ProxyLimits(device_memory_limit_bytes=2**63)
        with pytest.raises(
            InvalidRequestError, match="device_memory_limit_bytes:9223372036854775808"
        ):
            read_proxy_request(create_proxy(**RIGHT, limits=asked), TYPES, MOST)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("name", "Not_A_Label"),
            ("name", ""),
            ("session", ""),
            ("session", "a\nb"),
            ("virtual_slices", ["tpuv4:2x2x1"]),
            ("virtual_slices", ["nonsense"]),
            ("elastic_slices", 2),
            ("queue_timeout_s", -1.0),
            ("queue_timeout_s", math.nan),
            ("max_lifetime_s", -1.0),
            ("max_lifetime_s", math.inf),
            ("max_lifetime_s", 1e12),
            ("user", "a\x00b"),
            ("team", "x" * 300),
            ("host", "a\nb"),
            ("xla_flags", ["--parent_pid=1"]),
            ("xla_flags", ["--xla_a=b c"]),
            ("tcp_port", 70_000),
            ("owner_pid", 2**31),
            ("owner_start", "x" * 300),
        ],
    )
    def test_a_wrong_field_is_named(self, field: str, value: object) -> None:
        message = create_proxy(**{**RIGHT, field: value})
        with pytest.raises(InvalidRequestError) as caught:
            read_proxy_request(message, TYPES, MOST)
        assert caught.value.field == field

    def test_colocated_python_is_refused_where_it_cannot_run(self) -> None:
        assert not read_proxy_request(create_proxy(**RIGHT), TYPES, MOST).colocated_python
        message = create_proxy(**RIGHT, colocated_python=True)
        refusal = SupervisorOptions().python_refusal
        assert read_proxy_request(message, TYPES, MOST, "", refusal).colocated_python
        for engine in ENGINES:
            refusal = SupervisorOptions(platform="cuda", engine=engine).python_refusal
            with pytest.raises(InvalidRequestError, match="platform cuda") as caught:
                read_proxy_request(message, TYPES, MOST, "", refusal)
            assert (caught.value.field, caught.value.value) == ("proxy_options", "sidecar:true")
        assert "--allow-colocated" in SupervisorOptions(engine="distributed").python_refusal

    def test_an_unknown_type_is_refused_with_the_known_ones(self) -> None:
        message = create_proxy(**{**RIGHT, "virtual_slices": ["tpuv4:2x2x1"]})
        with pytest.raises(InvalidRequestError, match="tpuv6e:2x2, tpuv5e:2x4"):
            read_proxy_request(message, TYPES, MOST)


class TestEndings:
    def test_the_exit_report_is_preferred_to_the_exit_code(self, tmp_path: Path) -> None:
        path = tmp_path / "report"
        path.write_text('{"reason": "the lease ended", "exit_code": 69}')
        report = read_exit_report(path)
        assert reason_of(69, report) == "the lease ended"

    @pytest.mark.parametrize("text", ["", "[1]", "{", '{"reason": 3}', "\udcff"])
    def test_a_report_that_is_none_is_passed_over(self, text: str, tmp_path: Path) -> None:
        path = tmp_path / "report"
        path.write_bytes(text.encode(errors="surrogateescape"))
        assert reason_of(-9, read_exit_report(path)) == "killed by SIGKILL"
        assert read_exit_report(tmp_path / "none") == ""

    def test_codes_in_words(self) -> None:
        assert reason_of(3, "") == "exit code 3"
        assert reason_of(-250, "") == "killed by signal 250"
        assert reason_of(None, "") == "it could not be started"


#: Owners of logs: a service that has ended, and one that cannot be seen from here.
ENDED = Identity(pid=1, start="")
ELSEWHERE = Identity(pid=1, start="another-boot/1", machine="0123@there", namespace="pid:[1]")


def started(parent: Path, name: str, owner: Identity) -> None:
    """Makes the directory of logs of a service's start."""
    (parent / name).mkdir()
    (parent / name / "service.json").write_text(json.dumps(owner.to_json()))


class TestLogs:
    def test_tail_has_whole_lines_only(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        path.write_text("".join(f"{'x' * 500} {number}\n" for number in range(100)))
        tail = tail_of(path, 20)
        assert 0 < len(tail) <= 20
        assert tail[-1].endswith(" 99")
        assert all(len(line) > 500 for line in tail)
        assert tail_of(tmp_path / "none") == []

    def test_files_and_starts_are_bounded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs_module, "FILE_LIMIT", 1000)
        parent = tmp_path / "logs"
        parent.mkdir()
        for number in range(30):
            started(parent, f"service-2020{number:02}", ENDED)
        logs = ServiceLogs(tmp_path)
        logs.create()
        kept = sorted(path.name for path in parent.iterdir())
        assert len(kept) == logs_module.STARTS_KEPT
        assert kept[-1] == logs.directory.name
        with logs.path("rm").open("ab") as writer:
            writer.write(b"y" * 2000)
            writer.flush()
            logs.keep_small()
            writer.write(b"after")
            writer.flush()
        assert logs.path("rm").read_bytes() == b"after"
        assert (logs.directory / "rm.log.1").stat().st_size == 2000
        logs.write_event(Event.of("x", source="supervisor"))
        assert '"kind":"x"' in logs.path("supervisor").read_text()

    def test_a_clock_that_was_set_back_costs_no_log(self, tmp_path: Path) -> None:
        parent = tmp_path / "logs"
        parent.mkdir()
        for number in range(logs_module.STARTS_KEPT + 2):
            started(parent, f"service-2099{number:02}", ENDED)
        # The start before this one, with the same clock.
        started(parent, "service-202001", ENDED)
        logs = ServiceLogs(tmp_path)
        logs.create()
        kept = sorted(path.name for path in parent.iterdir())
        assert len(kept) == logs_module.STARTS_KEPT
        assert kept[:2] == ["service-202001", logs.directory.name]
        assert kept[-1] == f"service-2099{logs_module.STARTS_KEPT + 1:02}"

    def test_logs_of_services_that_may_run_are_kept(self, tmp_path: Path) -> None:
        parent = tmp_path / "logs"
        parent.mkdir()
        started(parent, "service-201901-here", identity_of())
        started(parent, "service-201902-there", ELSEWHERE)
        # (Earlier releases did not note whose they are.)
        (parent / "service-201903").mkdir()
        for number in range(30):
            started(parent, f"service-2020{number:02}", ENDED)
        ServiceLogs(tmp_path).create()
        kept = sorted(path.name for path in parent.iterdir())
        assert kept[:3] == ["service-201901-here", "service-201902-there", "service-201903"]
        assert len(kept) == logs_module.STARTS_KEPT + 3

    def test_logs_of_another_machine_are_removed_after_days_of_silence(
        self, tmp_path: Path
    ) -> None:
        parent = tmp_path / "logs"
        parent.mkdir()
        now = time.time()
        for name, owner, age_s in (
            ("service-201901-there", ELSEWHERE, logs_module.SILENT_KEPT_S + 60.0),
            ("service-201902-there", ELSEWHERE, logs_module.SILENT_KEPT_S - 60.0),
            ("service-201903-here", identity_of(), 10 * logs_module.SILENT_KEPT_S),
        ):
            started(parent, name, owner)
            os.utime(parent / name, (now - age_s, now - age_s))
        logs = ServiceLogs(tmp_path)
        logs.create()
        kept = sorted(path.name for path in parent.iterdir())
        assert kept == ["service-201902-there", "service-201903-here", logs.directory.name]

    def test_a_service_that_runs_is_not_silent(self, tmp_path: Path) -> None:
        logs = ServiceLogs(tmp_path)
        logs.create()
        before = time.time() - logs_module.TOUCH_INTERVAL_S
        os.utime(logs.directory, (before, before))
        logs.keep_small()
        assert logs.directory.stat().st_mtime > before + 1.0

    def test_equal_process_ids_on_machines_of_one_name_share_no_logs(self, tmp_path: Path) -> None:
        one, other = ServiceLogs(tmp_path), ServiceLogs(tmp_path)
        other.directory = one.directory
        one.create()
        other.create()
        assert place_name() in one.directory.name
        assert other.directory.name == f"{one.directory.name}-2"
        one.path("rm").write_text("its own")
        assert not other.path("rm").exists()

    def test_logs_of_standbys_are_few_and_a_file_that_cannot_be_cut_ends_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs_module, "FILE_LIMIT", 10)
        (tmp_path / "logs").mkdir()
        logs = ServiceLogs(tmp_path)
        logs.create()
        for number in range(logs_module.PROXIES_KEPT + 20):
            logs.path(f"standby-{number}").touch()
        logs.path("rm").write_bytes(b"y" * 20)
        (logs.directory / "rm.log.1").mkdir()
        logs.keep_small()
        assert logs.path("rm").stat().st_size == 20
        assert len(list(logs.directory.glob("standby-*"))) == logs_module.PROXIES_KEPT


def test_servers_do_not_inherit_the_users_settings() -> None:
    environ = {
        "PATH": "/bin",
        "PYTHONPATH": "/lib/mine",
        "JAX_PLATFORMS": "proxy",
        "XLA_FLAGS": "--xla_a=1",
        "SPS_TOKEN_FILE": "/t",
        "SPS_RUNTIME_DIR": "/r",
    }
    kept = server_environment(environ)
    assert kept["PATH"] == "/bin"
    assert kept["SPS_RUNTIME_DIR"] == "/r"
    assert kept["PYTHONPATH"].split(os.pathsep)[-1] == "/lib/mine"
    assert not {"JAX_PLATFORMS", "XLA_FLAGS", "SPS_TOKEN_FILE"} & kept.keys()


def test_every_policy_of_the_resource_manager_is_passed_on_to_it() -> None:
    """As it is said to the service: the resource manager's own variables do not matter."""
    said = {
        "preemption_grace_s": 0.0,
        "aging_s": 7.5,
        "idle_release_s": 100.0,
        "idle_warning_s": 0.0,
        "max_slices_per_tenant": 1,
        "max_slices_per_team": 2,
        "max_tenants_per_team": 3,
        "max_wait_s": 0.25,
        "max_priority": -2,
        "proxy_memory_limit_bytes": 5,
        "history_rows": 6,
        "history_days": 0.5,
        "metrics_port": 0,
        "metrics_address": "127.0.0.2",
    }
    assert said.keys() == set(policy_names())
    options = SupervisorOptions(**said)  # type: ignore[arg-type]
    passed = _resource_manager_options(options, {"SPS_PREEMPTION_GRACE_S": "9"})
    assert {name: getattr(passed, name) for name in said} == said
    passed = _resource_manager_options(SupervisorOptions(), {})
    assert {name: getattr(passed, name) for name in said} == {
        name: getattr(ResourceManagerOptions, name) for name in said
    }
    variables = {"SPS_HISTORY_ROWS": "8", "SPS_HISTORY_DAYS": "9", "SPS_IDLE_RELEASE_S": "1"}
    passed = _resource_manager_options(parse_flags(SupervisorOptions, [], variables), {})
    assert (passed.history_rows, passed.history_days, passed.idle_release_s) == (8, 9.0, 1.0)
    assert passed.idle_times == (1.0, 0.5, 0.1)


@pytest.mark.parametrize("engine", ["local", "distributed"])
def test_the_engine_is_that_of_the_service_for_all_its_servers(engine: str, tmp_path: Path) -> None:
    """Whatever their own variable says."""
    options = SupervisorOptions(engine=engine)
    variables = {"SPS_ENGINE": "local" if engine == "distributed" else "distributed"}
    assert _resource_manager_options(options, variables).engine == engine
    request = read_proxy_request(create_proxy(name="a", session="s"), TYPES, MOST)
    arguments = proxy_arguments(
        RuntimePaths(Path("/r")),
        options,
        request,
        settings=Settings.load(environ={"SPS_CACHE_DIR": str(tmp_path)}),
        uid="0a",
        transfer_dir="",
        ready_fd=1,
    )
    proxy = parse_flags(ProxyServerOptions, arguments, variables)
    assert proxy.engine == engine
    assert proxy.places_executors == (engine == "distributed")
    # (Executors do not cache, and the proxy refuses a cache.)
    assert bool(proxy.compile_cache_dir) == (engine == "local")


def test_what_executors_cannot_do_is_refused_with_their_engine() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SupervisorOptions(engine="distributed", ffi_library_dir="/somewhere")
    assert caught.value.field == "--ffi_library_dir"


def _resource_manager_options(
    options: SupervisorOptions, environ: dict[str, str]
) -> ResourceManagerOptions:
    paths = RuntimePaths(Path("/r"))
    command = resource_manager_command(paths, options, ready_fd=1, first_start=False)
    return parse_flags(ResourceManagerOptions, command[4:], environ)


@pytest.mark.parametrize(
    "flag",
    ["--slices=tpuv6e:2x2", "--slices=tpuv6e:0x2=1", "--spares=-1", "--idle_s=0", "--unknown=1"],
)
def test_wrong_flags_are_named(flag: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_flags(SupervisorOptions, [flag], {})
    assert caught.value.field == flag.split("=", maxsplit=1)[0]
