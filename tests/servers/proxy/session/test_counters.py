"""What a proxy tells of itself: exact numbers after known requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from harness.openmetrics import text_to_families
from harness.proxy.programs import DOUBLE, sharded_double
from harness.proxy.raw import Failed, RawClient, single, split
from shared_pathways_service.metrics.exposition import render
from shared_pathways_service.metrics.measurement_messages import families_of
from shared_pathways_service.servers.proxy.engine.compile_cache import CompileCache
from shared_pathways_service.servers.proxy.session.handlers import HANDLERS
from tests.servers.proxy.conftest import LocalProxy, MakeClient, MakeProxy, wait_until
from tests.servers.proxy.session.counting import ask, counters

FOUR = np.arange(4, dtype=np.float32)
EIGHT = np.arange(8, dtype=np.float32)
NS = "sps_proxy"


def counters_after(proxy: LocalProxy, settled: int) -> dict[str, Any]:
    """What is told once the last `settle` is counted itself: that is after its answer."""
    name = f"{NS}_requests_total"
    wait_until(lambda: counters(proxy)[name]["is_array_deleted"] == settled)
    return counters(proxy)


def settle(client: RawClient) -> None:
    """Has all requests before this one counted: one thread handles them in their order."""
    with pytest.raises(Failed):
        client.call("is_array_deleted", array_handle=999_999)


def run(client: RawClient) -> int:
    program = client.compile(DOUBLE, [0])
    (result,) = client.execute(program, [client.put(FOUR, single(0))])
    client.fetch(result)
    settle(client)
    return result


def test_a_new_proxy_has_done_nothing(proxy: LocalProxy) -> None:
    values = counters(proxy)
    assert values.pop(f"{NS}_info").keys() == {"version", "jaxlib_version"}
    assert values.pop(f"{NS}_device_memory_bytes") == {str(i): 0 for i in range(8)}
    assert {name: value for name, value in values.items() if value} == {}


def test_requests_are_counted_by_kind(proxy: LocalProxy, connect: MakeClient) -> None:
    client = connect(proxy.address)
    run(client)
    before = counters_after(proxy, 1)
    for _ in range(3):
        run(client)
    after = counters_after(proxy, 4)
    grown = {
        kind: count - before[f"{NS}_requests_total"][kind]
        for kind, count in after[f"{NS}_requests_total"].items()
    }
    assert grown == {
        "init": 0,
        "compile": 3,
        "make_array_from_host_buffer": 3,
        "loaded_executable_execute": 3,
        "copy_to_host_buffer": 3,
        "is_array_deleted": 3,
    }
    assert after[f"{NS}_refusals_total"]["is_array_deleted"] >= 3
    assert after[f"{NS}_refusals_total"]["compile"] == 0
    for name in ("handler_seconds", "request_bytes"):
        for kind in grown.keys() - {"init"}:
            label = f"{NS}_{name}_total"
            assert after[label][kind] > before[label][kind] > 0
    assert after[f"{NS}_answer_bytes_total"] > before[f"{NS}_answer_bytes_total"] > 0
    assert after[f"{NS}_dispatches_total"] == before[f"{NS}_dispatches_total"] + 3 == 4
    assert after[f"{NS}_received_buffers_total"] == 4
    assert after[f"{NS}_received_bytes_total"] == 4 * FOUR.nbytes
    assert after[f"{NS}_sent_buffers_total"] == 4
    assert after[f"{NS}_sent_bytes_total"] == 4 * FOUR.nbytes
    assert after[f"{NS}_compilations_total"] == 4
    assert after[f"{NS}_compile_seconds_total"] > before[f"{NS}_compile_seconds_total"] > 0


def test_a_refused_dispatch_is_not_counted(client: RawClient, proxy: LocalProxy) -> None:
    with pytest.raises(Failed):
        client.execute(12345, [])
    settle(client)
    values = counters(proxy)
    assert values[f"{NS}_requests_total"]["loaded_executable_execute"] == 1
    assert values[f"{NS}_refusals_total"]["loaded_executable_execute"] == 1
    assert values[f"{NS}_dispatches_total"] == 0


def test_held_memory_is_counted(proxy: LocalProxy, connect: MakeClient) -> None:
    client, other = connect(proxy.address), connect(proxy.address)
    array = client.put(EIGHT, split([0, 1, 2, 3]))
    client.ready(array)
    small = other.put(FOUR, single(5))
    other.ready(small)
    other.compile(DOUBLE, [5])
    other.store(777, b"waits to be used")
    values = counters(proxy)
    assert values[f"{NS}_open_sessions"] == values[f"{NS}_opened_sessions_total"] == 2
    assert (values[f"{NS}_live_arrays"], values[f"{NS}_live_programs"]) == (2, 1)
    # Beside them the future that says when the program is compiled.
    assert values[f"{NS}_open_handles"] == 4
    assert values[f"{NS}_held_back_sessions"] == 0
    assert values[f"{NS}_host_buffers"] == 1
    assert values[f"{NS}_host_memory_bytes"] >= len(b"waits to be used")
    held = values[f"{NS}_device_memory_bytes"]
    assert [held[str(i)] for i in range(8)] == [8, 8, 8, 8, 0, 16, 0, 0]
    # A view shares its array's memory.
    client.call("disassemble_into_single_device_arrays", array_handle=array)
    values = counters(proxy)
    assert values[f"{NS}_live_arrays"] == 6
    assert values[f"{NS}_device_memory_bytes"] == held
    # A deleted array holds nothing, though its handle is still known.
    other.call("delete_array", array_handle=[small])
    assert counters(proxy)[f"{NS}_device_memory_bytes"]["5"] == 0


def test_memory_is_counted_against_the_limit(make_proxy: MakeProxy, connect: MakeClient) -> None:
    proxy = make_proxy(memory_limit=1000)
    client = connect(proxy.address)
    client.ready(client.put(FOUR, single(3)))
    values = counters(proxy)
    assert values[f"{NS}_device_memory_limit_bytes"] == 1000
    assert values[f"{NS}_device_memory_bytes"]["3"] == 16


def test_an_ended_session_still_counts_and_holds_nothing(
    proxy: LocalProxy, connect: MakeClient
) -> None:
    client = connect(proxy.address)
    run(client)
    during = counters_after(proxy, settled=1)
    client.close()
    wait_until(lambda: counters(proxy)[f"{NS}_open_sessions"] == 0)
    # (The thread that took the upload may hold it a moment longer.)
    wait_until(lambda: proxy.service.host_memory.held == 0)
    after = counters(proxy)
    gauges = (
        "open_sessions",
        "open_handles",
        "unanswered_requests",
        "live_arrays",
        "live_programs",
        "host_buffers",
        "host_memory_bytes",
    )
    assert [after[f"{NS}_{name}"] for name in gauges] == [0] * len(gauges)
    assert sum(after[f"{NS}_device_memory_bytes"].values()) == 0
    for name, value in during.items():
        if name.endswith("_total") and not isinstance(value, dict):
            assert after[name] >= value, name
    assert after[f"{NS}_requests_total"] == during[f"{NS}_requests_total"]


def test_hits_and_misses_of_the_cache_are_counted(
    make_proxy: MakeProxy, connect: MakeClient, own_directories: Path
) -> None:
    cache = CompileCache(own_directories / "compiled", 1 << 30, b"a machine")
    proxy = make_proxy(compile_cache=cache)
    for _ in range(3):
        connect(proxy.address).compile(sharded_double(2), [0, 1])
    values = counters(proxy)
    cache.close()
    assert values[f"{NS}_compilations_total"] == 1
    names = ("hits", "misses", "stored", "rejected", "evicted")
    assert [values[f"{NS}_compile_cache_{name}_total"] for name in names] == [2, 1, 1, 0, 0]


def test_the_number_of_counted_kinds_is_bounded(client: RawClient, proxy: LocalProxy) -> None:
    # A field that no version of the protocol has.
    client.send_raw(b"\x0a\x02\x08\x63" + b"\xca\x3e\x00")
    settle(client)
    kinds = counters(proxy)[f"{NS}_requests_total"]
    assert kinds["unknown"] == 1
    known = {name.removesuffix("_request") for name in HANDLERS}
    assert kinds.keys() <= known | {"unknown"}


def test_the_text_is_openmetrics(client: RawClient, proxy: LocalProxy) -> None:
    run(client)
    found = text_to_families(render(families_of(ask(proxy.address))))
    samples = {s.name: s.value for family in found for s in family.samples if not s.labels}
    assert samples[f"{NS}_compilations_total"] == 1
    for family in found:
        assert family.name.startswith(NS)
        assert family.documentation
        if any(word in family.name for word in ("bytes", "seconds")):
            assert family.unit in {"bytes", "seconds"}


def test_only_the_tenant_reads_its_counters(make_proxy: MakeProxy) -> None:
    proxy = make_proxy(token="the-tenants")
    for token, code in ((None, "UNAUTHENTICATED"), ("another", "PERMISSION_DENIED")):
        with pytest.raises(grpc.RpcError) as raised:
            ask(proxy.address, token)
        error: Any = raised.value
        assert error.code().name == code
    assert ask(proxy.address, "the-tenants").families
