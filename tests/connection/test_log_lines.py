"""The INFO lines of a connection, for the states that a session goes through."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable
from pathlib import Path

import pytest

from harness.upstream import calls_of, service_file
from shared_pathways_service.connection import logging_lines
from shared_pathways_service.connection.logging_lines import LogLines
from shared_pathways_service.session.messages import Phase, SliceView, Snapshot

LOGGER = "shared_pathways_service.isc_pathways"
NEW = Snapshot(name="isc-proxy-ada-x7k2p", phase=Phase.NEW)
LINK = "https://console.cloud.google.com/logs/query;query=q?project=p"

_STEP = "a step of the clean-up, whose beginning and end are written"
#: Lines of upstream's `isc_pathways` that are not written here, by how they begin, and why.
NOT_WRITTEN = {
    "Auto-detected compatible proxy server image": "the proxy's Job names its image",
    "\n%s": "the sidecar's versions are a check of `sps doctor`",
    "Starting ISCPathways context.": "a name of upstream's code",
    "Exiting ISCPathways context.": "a name of upstream's code",
    "Streaming proxy logs until": "placement is read from events where the service has them",
    "Proxy log:": "`sps logs` and `Connection.logs` show the proxy's log",
    "Starting Pathways proxy cleanup.": _STEP,
    "Cleared JAX caches": _STEP,
    "Terminating port forwarding process": "there is no such process",
    "Terminating log streaming process": "there is no such process",
    "Restoring JAX env and config": _STEP,
    "JAX variables restored.": _STEP,
    "Unsetting environment variable": _STEP,
    "Restoring environment variable": _STEP,
}


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger=LOGGER)


def with_slices(*states: str) -> Snapshot:
    views = (
        SliceView(index=index, instance_type="tpuv6e:2x2", state=state)
        for index, state in enumerate(states)
    )
    return dataclasses.replace(NEW, phase=Phase.PLACE, slices=tuple(views))


def told(caplog: pytest.LogCaptureFixture, wanted: int, states: Iterable[Snapshot]) -> list[str]:
    lines = LogLines(wanted)
    for state in states:
        lines.update(state)
    return [record.getMessage() for record in caplog.records if "TPU" in record.getMessage()]


def test_each_slice_is_counted_and_the_last_completes(caplog: pytest.LogCaptureFixture) -> None:
    states = [
        with_slices("unplaced", "unplaced", "unplaced"),
        with_slices("unplaced", "placed", "unplaced"),
        with_slices("unplaced", "placed", "placed"),
        with_slices("placed", "placed", "placed"),
    ]
    assert told(caplog, 3, states) == [
        "TPU slice 1/3 placed!",
        "TPU slice 2/3 placed!",
        "TPU placement for 3 slice(s) complete!",
    ]


def test_no_slice_is_left_out_when_several_are_placed_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert told(caplog, 2, [with_slices("placed", "placed")]) == [
        "TPU slice 1/2 placed!",
        "TPU placement for 2 slice(s) complete!",
    ]


def test_a_slice_that_is_replaced_is_not_counted_again(caplog: pytest.LogCaptureFixture) -> None:
    one, both = with_slices("placed", "unplaced"), with_slices("placed", "placed")
    assert len(told(caplog, 2, [one, both, one, both])) == 2


def test_placement_is_complete_also_where_no_slice_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    states = [NEW, dataclasses.replace(NEW, placed=True), dataclasses.replace(NEW, placed=True)]
    assert told(caplog, 2, states) == ["TPU placement for 2 slice(s) complete!"]


def test_the_link_to_cloud_logging_is_printed_once(caplog: pytest.LogCaptureFixture) -> None:
    created = dataclasses.replace(NEW, phase=Phase.START, uid="u", log=LINK)
    lines = LogLines(1)
    lines.update(created)
    lines.update(dataclasses.replace(created, ready=True))
    links = [r.getMessage() for r in caplog.records if "Cloud Logging" in r.getMessage()]
    assert links == [f"View proxy logs in Cloud Logging: {LINK}"]
    assert all(record.levelname == "INFO" and record.name == LOGGER for record in caplog.records)


def test_a_log_file_of_this_machine_is_no_link(caplog: pytest.LogCaptureFixture) -> None:
    LogLines(1).update(dataclasses.replace(NEW, phase=Phase.START, uid="u", log="/somewhere/proxy"))
    assert "Cloud Logging" not in caplog.text


def test_a_client_is_ready_for_a_cluster(caplog: pytest.LogCaptureFixture) -> None:
    lines = LogLines(1)
    lines.report_attached(None)
    lines.report_attached("my-cluster")
    [line] = [record.getMessage() for record in caplog.records]
    assert line == "Interactive supercomputing proxy client ready for cluster 'my-cluster'."


def info_lines(source: Path, logger: str) -> set[str]:
    """Returns the formats of the INFO lines that a module writes."""
    return {str(ast.literal_eval(call.args[0])) for call in calls_of(source, logger)}


def test_every_info_line_of_upstream_is_written_or_has_a_reason() -> None:
    theirs = info_lines(service_file("isc_pathways.py"), "_logger.info")
    ours = info_lines(Path(str(logging_lines.__file__)), "_log.info")
    left_out = {line for line in theirs if line.startswith(tuple(NOT_WRITTEN))}
    assert ours == theirs - left_out
    assert len(left_out) == len(NOT_WRITTEN)
