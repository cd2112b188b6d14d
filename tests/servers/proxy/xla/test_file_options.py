"""Compile options of clients never make a proxy write or read files."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jaxlib
import pytest
from google.protobuf import descriptor_pb2
from jaxlib import xla_client

from harness.processes import DEADLINE_S
from harness.proxy.raw import Failed, RawClient
from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.engine.compile_cache import CacheCounts, CompileCache
from shared_pathways_service.servers.xla.debug_options import own_debug_options
from shared_pathways_service.servers.xla.file_options import (
    FILES,
    HARMLESS,
    TEXTS,
    without_files,
)
from tests.servers.proxy.conftest import LocalProxy, MakeClient, MakeProxy
from tests.servers.proxy.xla.option_bytes import (
    _BUILD,
    _DEBUG,
    _OVERRIDES,
    compile_with,
    debug,
    message,
    options_with,
    override,
)

JAX_PROCESS = """
import sys
import jax
from jax.extend import backend
from jax.extend.backend import ifrt_proxy

def connect():
    return ifrt_proxy.get_client(sys.argv[1], ifrt_proxy.ClientConnectionOptions())

backend.register_backend_factory("proxy", connect, priority=-1)
jax.config.update("jax_platforms", "proxy")
jax.config.update("jax_backend_target", sys.argv[1])
assert jax.jit(lambda x: x + 1)(1.0) == 2
"""


@pytest.fixture
def cache(own_directories: Path) -> Iterator[CompileCache]:
    made = CompileCache(own_directories / "compiled", 1 << 30, b"a machine")
    yield made
    made.close()


def test_a_request_for_dumps_uses_the_cache_and_writes_nothing(
    make_proxy: MakeProxy, connect: MakeClient, cache: CompileCache, own_directories: Path
) -> None:
    dumps = own_directories / "dumps"
    client = connect(make_proxy(compile_cache=cache).address)
    compile_with(client, options_with())
    wanted = {"xla_dump_to": str(dumps), "xla_dump_hlo_as_text": True}
    compile_with(client, options_with(wanted))
    compile_with(client, options_with(wanted | {"xla_dump_hlo_pass_re": ".*"}))
    compile_with(client, options_with({}, list(wanted.items())))
    assert cache.counts == CacheCounts(hits=3, misses=1, stored=1)
    assert not dumps.exists()


def test_xla_flags_of_a_client_use_the_cache_and_write_nothing(
    make_proxy: MakeProxy,
    cache: CompileCache,
    own_directories: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    address = make_proxy(compile_cache=cache).address
    dumps = own_directories / "dumps"
    counts = []
    for flags in ("", f"--xla_dump_to={dumps}", f"--xla_dump_to={dumps} --xla_dump_hlo_as_text"):
        environment = os.environ | {
            "XLA_FLAGS": flags,
            "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
        }
        command = [sys.executable, "-c", JAX_PROCESS, f"grpc://{address}"]
        subprocess.run(command, env=environment, check=True, timeout=DEADLINE_S)
        counts.append(dataclasses.replace(cache.counts))
    programs = counts[0].misses
    assert programs > 0
    assert counts[1:] == [
        CacheCounts(hits=times * programs, misses=programs, stored=programs) for times in (1, 2)
    ]
    assert not dumps.exists()
    said = [line for line in capfd.readouterr().err.splitlines() if "are ignored" in line]
    assert len(said) == 2
    assert all("xla_dump_to" in line for line in said)


def test_dumps_by_the_proxys_own_flags_are_written(
    make_proxy: MakeProxy, connect: MakeClient, own_directories: Path
) -> None:
    ours, theirs = own_directories / "ours", own_directories / "theirs"
    client = connect(make_proxy(xla_flags=[("xla_dump_to", str(ours))]).address)
    compile_with(client, options_with({"xla_dump_to": str(theirs)}))
    assert list(ours.glob("*double*"))
    assert not theirs.exists()


def test_ignored_options_are_reported_once_per_session(
    proxy: LocalProxy, connect: MakeClient, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        client = connect(proxy.address)
        compile_with(client, options_with())
        for _ in range(3):
            compile_with(client, options_with({"xla_dump_to": "/nowhere/at/all"}))
    said = [line for line in capfd.readouterr().err.splitlines() if "are ignored" in line]
    assert len(said) == 2
    assert all(line.endswith("write or read files: xla_dump_to") for line in said)


def test_the_options_of_another_kind_stay_as_they_are() -> None:
    kept = [
        ("no option's name", "/a/file"),
        ("xla_cpu_enable_fast_math", True),
        ("xla_cpu_max_isa", "AVX2"),
        ("xla_dont_know_this_switch", "true"),
        ("xla_hlo_evaluator_use_fast_path", False),
        ("xla_some_choice", "AUTOTUNE_CACHE_MODE_READ"),
        ("xla_some_number", "1e-3"),
    ]
    raw = core_pb2.XlaCompileOptionsProto.FromString(
        options_with({"xla_backend_optimization_level": 1, "xla_disable_hlo_passes": "cse"}, kept)
    ).compile_options
    left, ignored = without_files(raw, own_debug_options())
    assert ignored == []
    parsed = xla_client.CompileOptions.ParseFromString(left)
    assert sorted(parsed.env_option_overrides) == kept
    debug_options = parsed.executable_build_options.debug_options
    assert debug_options.xla_backend_optimization_level == 1
    assert debug_options.xla_disable_hlo_passes == "cse"


@pytest.mark.parametrize("name", sorted(FILES))
def test_file_options_are_dropped_in_overrides_too(name: str) -> None:
    for options in (debug(FILES[name], b"a/file"), override(name.encode(), b"a/file")):
        left, ignored = without_files(options, b"")
        assert ignored == [name]
        assert b"a/file" not in left


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (debug(9999, b"a/file"), "debug option number 9999"),
        (override(b"xla_of_tomorrow", b"a/file"), "xla_of_tomorrow"),
        (override(b"xla_of_tomorrow_cache_dir", b"1"), "xla_of_tomorrow_cache_dir"),
        (override(b"xla_cpu_dump_of_tomorrow", b"true"), "xla_cpu_dump_of_tomorrow"),
        (override(b"xla_load_from", b"FILE"), "xla_load_from"),
    ],
)
def test_unknown_text_options_are_treated_as_file_names(options: bytes, name: str) -> None:
    left, ignored = without_files(options, b"")
    assert ignored == [name]
    assert name.encode() not in left


def test_all_debug_options_are_checked() -> None:
    options = debug(FILES["xla_dump_to"], b"a") + debug(FILES["xla_dump_to"], b"b")
    left, ignored = without_files(options, b"")
    assert ignored == ["xla_dump_to"]
    parsed = xla_client.CompileOptions.ParseFromString(left)
    assert parsed.executable_build_options.debug_options.xla_dump_to == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (debug(TEXTS["xla_cpu_max_isa"], b"\xc2\xff"), r"xla_cpu_max_isa must be .* UTF-8, not b'"),
        (debug(FILES["xla_dump_to"], b"\xc2\xff"), "xla_dump_to must be text in UTF-8"),
        (override(b"\xff", b""), "a name in env_option_overrides must be text in UTF-8"),
        (override(b"xla_b", b"\xff"), "xla_b in env_option_overrides must be text in UTF-8"),
        (
            message(_BUILD, message(_DEBUG, b"\xa3\x06\xa4\x06")),
            "field 100 is not an option of XLA",
        ),
        (message(_OVERRIDES, b"\x0a\xff"), "a number is truncated"),
        (message(_OVERRIDES, b"\x0a\x7fshort"), "field 1 is not an option of XLA"),
    ],
)
def test_options_that_are_not_text_are_refused_by_name(options: bytes, message: str) -> None:
    with pytest.raises(StatusError, match=message) as raised:
        without_files(options, b"")
    assert raised.value.code == Code.INVALID_ARGUMENT


def test_the_refusal_reaches_the_client(client: RawClient) -> None:
    outer = core_pb2.XlaCompileOptionsProto.FromString(options_with())
    outer.compile_options += debug(TEXTS["xla_cpu_max_isa"], b"\xc2\xff")
    with pytest.raises(Failed, match="xla_cpu_max_isa must be text in UTF-8"):
        compile_with(client, outer.SerializeToString())
    compile_with(client, options_with())


def test_bundled_outputs_are_refused(client: RawClient) -> None:
    outer = core_pb2.XlaCompileOptionsProto.FromString(options_with())
    outer.outputs_bundle_slice_sizes.append(1)
    with pytest.raises(Failed, match="outputs_bundle_slice_sizes is not supported") as raised:
        compile_with(client, outer.SerializeToString())
    assert raised.value.code == Code.UNIMPLEMENTED.value


def _xlas_debug_options() -> list[descriptor_pb2.FieldDescriptorProto]:
    """Reads the fields of XLA's DebugOptions from jaxlib's library, which carries them."""
    folder = Path(jaxlib.__file__).parent
    data = max(folder.glob("*.so"), key=lambda path: path.stat().st_size).read_bytes()
    begin = data.index(message(1, b"xla/xla.proto"))
    # Where it ends is not written: its last field is the syntax or edition (12, 14).
    file = descriptor_pb2.FileDescriptorProto()
    for end in range(begin + 1000, begin + (1 << 20)):
        if data[end - 8 : end] == message(12, b"proto3"):
            file.ParseFromString(data[begin:end])
            break
    (found,) = (m for m in file.message_type if m.name == "DebugOptions")
    return list(found.field)


def test_each_text_of_the_installed_xlas_options_is_known() -> None:
    kinds = descriptor_pb2.FieldDescriptorProto
    known = FILES | TEXTS | HARMLESS
    fields = _xlas_debug_options()
    assert len(fields) > 200
    unknown = {
        field.name: field.number
        for field in fields
        if field.type in (kinds.TYPE_STRING, kinds.TYPE_BYTES, kinds.TYPE_MESSAGE)
        or field.label == kinds.LABEL_REPEATED
        or "_dump_" in field.name
        if known.get(field.name) != field.number
    }
    assert unknown == {}, "say in file_options.py whether these concern files"
