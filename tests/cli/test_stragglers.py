"""What `sps stragglers` and `sps top` print of the times on executors."""

from __future__ import annotations

from typing import Any

import pytest

from shared_pathways_service.cli.commands.manager import stragglers
from shared_pathways_service.cli.display.executor_display import shown_ratio
from shared_pathways_service.errors import ServiceNotFound
from shared_pathways_service.operations.host_times import times_of
from shared_pathways_service.protocol import proxy_status_pb2 as status_pb
from shared_pathways_service.protocol import resource_manager_pb2 as pb


def executor(host: int, ratio: float | None, *, is_slow: bool = False) -> status_pb.ExecutorTime:
    return status_pb.ExecutorTime(
        generation=4,
        host_index=host,
        ratio=ratio,
        is_slow=is_slow,
        programs=[
            status_pb.ProgramTime(
                program=1, calls=30, median_s=0.25, p90_s=1.5, ratio=ratio, is_slow=is_slow
            )
        ],
    )


def report(*executors: status_pb.ExecutorTime) -> list[pb.TenantExecutorTimes]:
    times = status_pb.ExecutorTimes(programs=["jit_f", "jit_g"], executors=executors)
    return [pb.TenantExecutorTimes(tenant="ada", times=times, age_s=2.5)]


def status(hosts: int = 2, *, runs_executors: bool = True) -> pb.GetStatusResponse:
    workers = [
        pb.WorkerStatus(
            host_index=host,
            host=f"machine-{host}",
            executor=pb.ExecutorStatus(generation=4) if runs_executors else None,
        )
        for host in range(hosts)
    ]
    return pb.GetStatusResponse(
        runs_executors=runs_executors,
        slices=[pb.SliceStatus(id="slice-0", tenant="ada", workers=workers)],
        tenants=[pb.TenantStatus(name="ada"), pb.TenantStatus(name="bob")],
    )


SLOW = report(executor(0, 0.3), executor(1, 3.3333, is_slow=True))


def test_the_slowest_host_comes_first_and_is_marked() -> None:
    found = times_of(status(), SLOW, "ada")
    assert found["engine"] == "distributed"
    [connection] = found["connections"]
    assert (connection["name"], connection["age_s"]) == ("ada", 2.5)
    shown = [
        (one["host"], one["machine"], one["slow"], one["slowest"], one["time_ratio"])
        for one in connection["hosts"]
    ]
    assert shown == [(1, "machine-1", True, True, 3.333), (0, "machine-0", False, False, 0.3)]
    assert connection["hosts"][0]["programs"] == [
        {
            "name": "jit_g",
            "calls": 30,
            "median_s": 0.25,
            "p90_s": 1.5,
            "ratio": 3.333,
            "slow": True,
        }
    ]


def test_each_instance_type_has_a_slowest_host_of_its_own() -> None:
    answer = pb.GetStatusResponse(runs_executors=True, tenants=[pb.TenantStatus(name="bob")])
    for name, kind, generation in (("a", "tpuv6e:2x4", 0), ("b", "tpuv6e:2x2", 10)):
        workers = [
            pb.WorkerStatus(host_index=one, executor=pb.ExecutorStatus(generation=generation + one))
            for one in range(2)
        ]
        answer.slices.add(id=name, tenant="bob", instance_type=kind, workers=workers)
    times = status_pb.ExecutorTimes(programs=["jit_f", "jit_g"])
    for generation, ratio in ((0, 3.0), (1, 0.3), (10, 1.2), (11, 0.9)):
        one = executor(generation % 10, ratio)
        one.generation = generation
        times.executors.append(one)
    [connection] = times_of(answer, [pb.TenantExecutorTimes(tenant="bob", times=times)], "bob")[
        "connections"
    ]
    marked = [(one["slice"], one["host"]) for one in connection["hosts"] if one["slowest"]]
    assert marked == [("a", 0), ("b", 0)]


def test_times_of_an_earlier_placement_are_not_shown() -> None:
    old = executor(0, 9.0, is_slow=True)
    old.generation = 3
    [connection, _] = times_of(status(), report(old), None)["connections"]
    assert [(one["slow"], one["time_ratio"]) for one in connection["hosts"]] == [(False, None)] * 2


def test_an_unknown_connection_is_refused() -> None:
    with pytest.raises(ServiceNotFound, match="no connection eve") as raised:
        times_of(status(), [], "eve")
    assert raised.value.candidates == ("ada", "bob")


@pytest.mark.parametrize(
    ("answer", "reports", "note"),
    [
        (status(), [], "ada: its proxy has reported nothing yet"),
        (status(hosts=1), report(executor(0, None)), "ada: it has one host, and so nothing to"),
        (status(), report(), "ada: no program of 1 ms or more has run twice on its hosts"),
        (status(hosts=0), [], "ada: it has no executors now"),
        (pb.GetStatusResponse(runs_executors=True), [], "The service has no connections."),
    ],
)
def test_what_cannot_be_compared_is_said(
    answer: pb.GetStatusResponse,
    reports: list[pb.TenantExecutorTimes],
    note: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stragglers._print(times_of(answer, reports, None)["connections"])
    assert note in capsys.readouterr().out


def test_the_table_has_a_row_for_each_host_and_program(capsys: pytest.CaptureFixture[str]) -> None:
    stragglers._print(times_of(status(), SLOW, "ada")["connections"])
    text = " ".join(capsys.readouterr().out.split())
    for row in (
        "ada slice-0 1 (machine-1) jit_g 30 250 ms 1.5 s 3.33x slow, slowest host",
        "ada slice-0 0 (machine-0) jit_g 30 250 ms 1.5 s 0.3x",
    ):
        assert row in text


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"time_ratio": None, "slow": False}, "-"),
        ({"time_ratio": 1.04, "slow": False}, "1.04x"),
        ({"time_ratio": 12.345, "slow": True}, "12.3x slow"),
        ({"time_ratio": 12_345.0, "slow": True}, "12300x slow"),
    ],
)
def test_the_column_of_top(row: dict[str, Any], shown: str) -> None:
    assert shown_ratio(row) == shown
