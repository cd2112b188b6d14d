"""Overrides of compile options that name files, in all forms on the wire."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.proxy.raw import Failed, RawClient
from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.xla import xla
from shared_pathways_service.servers.xla.file_options import (
    without_files,
)
from tests.servers.proxy.xla.option_bytes import (
    _OVERRIDES,
    compile_with,
    message,
    number,
    options_with,
    override,
    varint,
)

_NAME, _PATH = message(1, b"xla_dump_to"), message(1, b"/any/dir")
_TEXT_OF = message(2, _PATH)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        # XLA reads each of these as xla_dump_to=/any/dir, or may do so.
        (_NAME + number(1, 97) + _TEXT_OF, "the entry 'a' in"),
        (_NAME + message(2, _PATH + number(1, 97)), "the value of 'xla_dump_to' in"),
        (_NAME + _TEXT_OF + message(2, b""), "the entry 'xla_dump_to' in"),
        (message(1, b"a") + _NAME + _TEXT_OF, "the entry 'xla_dump_to' in"),
        (_TEXT_OF + _NAME, "the entry 'xla_dump_to' in"),
        (_NAME + _TEXT_OF + number(3, 1), "the entry 'xla_dump_to' in"),
        (_NAME + _TEXT_OF + b"\x8a\x80\x80\x80\x10\x01a", "the entry 'xla_dump_to' in"),
        (b"\x8a\x00\x0bxla_dump_to" + _TEXT_OF, "the entry 'xla_dump_to' in"),
        (message(1, b"a") + message(2, _PATH + number(2, 1)), "the value of 'a' in"),
        (message(1, b"a") + message(2, number(1, 97)), "the value of 'a' in"),
        (message(1, b"a") + message(2, message(5, b"/any/dir")), "the value of 'a' in"),
        (message(1, b"a") + message(2, b"\x8a\x00\x08/any/dir"), "the value of 'a' in"),
        (message(1, b"a") + message(2, b""), "the value of 'a' in"),
        (message(1, b"a"), "the entry 'a' in"),
    ],
)
def test_overrides_in_unusual_wire_forms_are_refused(entry: bytes, message: str) -> None:
    options = varint(_OVERRIDES << 3 | 2) + varint(len(entry)) + entry
    with pytest.raises(StatusError, match=message) as raised:
        without_files(options, b"")
    assert raised.value.code == Code.INVALID_ARGUMENT


def test_an_override_of_another_wire_type_is_refused() -> None:
    with pytest.raises(StatusError, match="an entry in env_option_overrides"):
        without_files(number(_OVERRIDES, 97), b"")


def test_a_disguised_override_of_a_client_writes_nothing(
    client: RawClient, own_directories: Path
) -> None:
    dumps = own_directories / "dumps"
    outer = core_pb2.XlaCompileOptionsProto.FromString(options_with())
    disguised = message(1, b"xla_dump_to") + number(1, 97)
    disguised += message(2, message(1, str(dumps).encode()) + number(1, 97))
    outer.compile_options += message(_OVERRIDES, disguised)
    with pytest.raises(Failed, match="must have exactly one name and one value"):
        compile_with(client, outer.SerializeToString())
    assert not dumps.exists()


def test_overrides_that_xla_reads_as_files_are_refused() -> None:
    client = xla.XlaClient([0])
    raw = core_pb2.XlaCompileOptionsProto.FromString(
        options_with({}, [("xla_cpu_max_isa", "AVX2"), ("xla_cpu_enable_fast_math", True)])
    ).compile_options
    client.options(raw, [0], [("xla_dump_to", "/the/operators")])
    with pytest.raises(StatusError, match="xla_dump_to in env_option_overrides would") as raised:
        client.options(raw + override(b"xla_dump_to", b"/any/dir"), [0])
    assert raised.value.code == Code.INVALID_ARGUMENT
