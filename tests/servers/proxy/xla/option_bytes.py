"""Compile options, as bytes of each form on the wire."""

from __future__ import annotations

from typing import Any

from jaxlib import xla_client

from harness.proxy.programs import DOUBLE, compile_options
from harness.proxy.raw import RawClient
from shared_pathways_service.protocol.ifrt import core_pb2


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


Debug = dict[str, Any]
#: xla.CompileOptionsProto.executable_build_options.debug_options
_BUILD = _DEBUG = 3
_OVERRIDES = 7


def message(number: int, content: bytes) -> bytes:
    """A field of a message that holds a message, or text."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*written, number))


def debug(number: int, content: bytes) -> bytes:
    """Compile options with one debug option."""
    return message(_BUILD, message(_DEBUG, message(number, content)))


def override(name: bytes, text: bytes) -> bytes:
    return message(_OVERRIDES, message(1, name) + message(2, message(1, text)))


def options_with(
    debug_options: Debug | None = None, overrides: list[tuple[str, Any]] | None = None
) -> bytes:
    """An XlaCompileOptionsProto, as JAX's client makes it."""
    outer = core_pb2.XlaCompileOptionsProto.FromString(compile_options([0]))
    options = xla_client.CompileOptions.ParseFromString(outer.compile_options)
    for name, value in (debug_options or {}).items():
        setattr(options.executable_build_options.debug_options, name, value)
    options.env_option_overrides = overrides or []
    outer.compile_options = options.SerializeAsString()
    return outer.SerializeToString()


def compile_with(client: RawClient, options: bytes) -> None:
    client.call(
        "compile",
        program=core_pb2.Serialized(type_name="xla::ifrt::XlaProgram", data=DOUBLE.encode()),
        compile_options=core_pb2.Serialized(type_name="xla::ifrt::XlaCompileOptions", data=options),
    )
