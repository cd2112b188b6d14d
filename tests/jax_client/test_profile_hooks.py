"""The hooks in JAX's profiler, without a proxy: what begins and ends when, and which files."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from shared_pathways_service.jax_client.plugin import trace_files, traced_proxies
from shared_pathways_service.protocol import xplane_pb2

BUCKETS = "PATHWAYS_PROFILING_ALLOWED_GCS_BUCKETS"


class Client:
    """A client whose proxy's profiles are counted."""

    platform_version = "another"

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.ended: list[str] = []

    def begin(self, log_dir: str, options: Any) -> tuple[Callable[..., Any], Any]:
        self.begun.append(options)

        def stop(stop_here: Callable[[], Any], kept_in: str) -> Any:
            self.ended.append(kept_in)
            return stop_here()

        del log_dir
        return stop, options


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    traced_proxies.install()
    traced_proxies._begin[made] = made.begin
    yield made
    with contextlib.suppress(RuntimeError):
        jax.profiler.stop_trace()
    traced_proxies.end(made)


def test_a_profile_that_ends_elsewhere_is_ended_before_the_next(
    client: Client, tmp_path: Path
) -> None:
    jax.profiler.start_trace(str(tmp_path))
    importlib.import_module("jax._src.profiler").stop_and_get_fdo_profile()
    assert client.ended == [""]
    with jax.profiler.trace(str(tmp_path)):
        assert len(client.begun) == 2
    assert client.ended == ["", str(tmp_path)]


def test_a_stale_profile_is_ended_by_the_next(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale: list[str] = []
    monkeypatch.setattr(
        traced_proxies,
        "_running",
        (os.getpid(), lambda _stop, kept_in: stale.append(kept_in), "there"),
    )
    with jax.profiler.trace(str(tmp_path)):
        assert stale == [""]
    assert client.ended == [str(tmp_path)]


def test_a_second_profile_leaves_the_first_as_it_is(client: Client, tmp_path: Path) -> None:
    with jax.profiler.trace(str(tmp_path)):
        with pytest.raises(RuntimeError, match=r"Only one profile"):
            jax.profiler.start_trace(str(tmp_path))
        assert len(client.begun) == 1
        assert client.ended == []
    assert client.ended == [str(tmp_path)]


def test_a_directory_elsewhere_is_for_this_process_only(caplog: pytest.LogCaptureFixture) -> None:
    begun = traced_proxies._begin_ours("unix:/nowhere", None, "gs://bucket/folder", None)
    assert begun == (None, None)
    assert "only this process is profiled: log_dir is 'gs://bucket/folder'" in caplog.text


def test_a_bucket_that_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BUCKETS, "gs://ours, gs://theirs")
    with pytest.raises(ValueError, match=r"gs://mine/x.*not in a bucket of PATHWAYS_PROFILING"):
        traced_proxies._begin_googles(Client, "gs://mine/x", None)
    traced_proxies._check_bucket("gs://theirs/x")
    monkeypatch.delenv(BUCKETS)
    traced_proxies._check_bucket("gs://mine/x")


@pytest.mark.skipif(
    not hasattr(jax.profiler.ProfileOptions(), "session_id"), reason="before JAX 0.9.2"
)
def test_options_for_all_processes_are_a_copy() -> None:
    options = jax.profiler.ProfileOptions()
    options.host_tracer_level = 1
    made = traced_proxies._in_a_session(options)
    assert (made.host_tracer_level, options.session_id) == (1, "")
    assert made.session_id
    options.session_id = "mine"
    assert traced_proxies._in_a_session(options).session_id == "mine"
    assert traced_proxies._in_a_session(None).session_id


def test_jax_gets_the_options_of_the_request(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = jax.profiler.ProfileOptions()

    def begin(log_dir: str, asked: Any) -> tuple[Callable[..., Any], Any]:
        stop, _ = client.begin(log_dir, asked)
        return stop, options

    monkeypatch.setitem(traced_proxies._begin, client, begin)
    options.session_id = "the-session"
    with jax.profiler.trace(str(tmp_path)):
        pass
    assert (tmp_path / "plugins" / "profile" / "the-session").is_dir()


# ---- files


def space(*planes: str, events: int) -> bytes:
    made = xplane_pb2.XSpace()
    for name in planes:
        plane = made.planes.add(name=name)
        plane.event_metadata[1].CopyFrom(xplane_pb2.XEventMetadata(id=1, name="event"))
        line = plane.lines.add(id=1, name="thread")
        for number in range(events):
            line.events.add(metadata_id=1, offset_ps=number * 1000, duration_ps=10)
    return made.SerializeToString()


def in_perfetto(session: Path) -> dict[str, int]:
    """Returns the number of events of each plane."""
    with gzip.open(session / trace_files.PERFETTO) as file:
        events = json.load(file)["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    found = [names[e["pid"]] for e in events if e["ph"] == "X"]
    return {name: found.count(name) for name in found}


def test_events_of_the_program_do_not_push_out_those_of_devices(tmp_path: Path) -> None:
    (tmp_path / "a-client.xplane.pb").write_bytes(space("/host:CPU", events=100))
    files = {"sps-proxy.xplane.pb": space("/host:CPU", "/device:CUSTOM:one", events=8)}
    note = trace_files.add_files(tmp_path, files, 20)
    assert in_perfetto(tmp_path) == {
        "sps-proxy /device:CUSTOM:one": 8,
        "sps-proxy /host:CPU": 2,
        "a-client /host:CPU": 10,
    }
    assert note.startswith("perfetto_trace.json.gz has 20 events")
    assert "sps-proxy.xplane.pb, a-client.xplane.pb" in note
    assert trace_files.add_files(tmp_path, files) == ""
    # What one file leaves is the next one's.
    assert "a-client" not in trace_files.add_files(tmp_path, files, 116)


def test_only_what_was_written_counts(tmp_path: Path) -> None:
    old = tmp_path / "plugins" / "profile" / "old" / "host.xplane.pb"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"")
    before = trace_files.files_below(str(tmp_path))
    assert trace_files.written_since(str(tmp_path), before) is None
    # A session may be written again.
    os.utime(old, ns=(1, before[old] + 1))
    assert trace_files.written_since(str(tmp_path), before) == old
    new = old.parent.parent / "new" / "host.xplane.pb"
    new.parent.mkdir()
    new.write_bytes(b"")
    os.utime(new, ns=(1, before[old] + 2))
    assert trace_files.written_since(str(tmp_path), before) == new


def test_a_damaged_file_does_not_fail_the_program(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[bool] = []
    profile: Any = SimpleNamespace(stop=lambda: None, close=lambda: closed.append(True))

    def stop_here() -> str:
        damaged = tmp_path / "plugins" / "profile" / "now" / "host.xplane.pb"
        damaged.parent.mkdir(parents=True)
        damaged.write_bytes(b"\xff\xff")
        return "JAX's"

    profile.collect = lambda _began_ns: ({"sps-proxy.xplane.pb": b"\xff\xff"}, [])
    assert traced_proxies._stop_ours(profile, stop_here, str(tmp_path)) == "JAX's"
    assert "the profile has only this process" in caplog.text
    assert closed == [True]
