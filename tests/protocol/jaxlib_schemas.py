"""Extracts the protobuf schemas in the installed jaxlib, to compare ours with them.

jaxlib's IFRT proxy client contains the descriptors of its messages, serialised as
FileDescriptorProtos. They are found in the library by their first bytes: field 1, a length, and a
name that ends in ``.proto``.
"""

from __future__ import annotations

import functools
import importlib.util
import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

__all__ = ["jaxlib_library", "jaxlib_messages", "jaxlib_schemas"]

_BEGINNING = re.compile(rb"\n([\x05-\x7f])([A-Za-z0-9_/.\-]+?\.proto)")
#: Numbers of FileDescriptorProto's fields.
_FIELDS = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14})
#: The maximum length of a schema.
_LONGEST = 400_000
_VARINT, _BYTES = 0, 2


def jaxlib_library() -> Path:
    """Returns jaxlib's main shared library."""
    spec = importlib.util.find_spec("jaxlib")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("jaxlib is not installed")
    return max(Path(spec.origin).parent.glob("*.so"), key=lambda path: path.stat().st_size)


@functools.cache
def jaxlib_schemas() -> Mapping[str, descriptor_pb2.FileDescriptorProto]:
    """Returns the schemas in jaxlib's library, by the names of their files."""
    found: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    with (
        jaxlib_library().open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        for match in _BEGINNING.finditer(data):
            if match[1][0] != len(match[2]):
                continue
            schema = _read(data[match.start() : match.start() + _LONGEST])
            if schema is None:
                continue
            known = found.get(schema.name)
            if known is None or known.ByteSize() < schema.ByteSize():
                found[schema.name] = schema
    return MappingProxyType(found)


@functools.cache
def jaxlib_messages() -> Mapping[str, descriptor_pb2.DescriptorProto]:
    """Returns every message of those schemas, nested ones too, by full name."""
    found: dict[str, descriptor_pb2.DescriptorProto] = {}

    def add(message: descriptor_pb2.DescriptorProto, scope: str) -> None:
        name = f"{scope}.{message.name}"
        found[name] = message
        for nested in message.nested_type:
            add(nested, name)

    for schema in jaxlib_schemas().values():
        for message in schema.message_type:
            add(message, schema.package)
    return MappingProxyType(found)


def _read(data: bytes) -> descriptor_pb2.FileDescriptorProto | None:
    schema = descriptor_pb2.FileDescriptorProto()
    try:
        schema.ParseFromString(data[: _length(data)])
    except DecodeError:
        return None
    has_content = schema.message_type or schema.enum_type or schema.service
    return schema if has_content else None


def _length(data: bytes) -> int:
    """Returns the length of the FileDescriptorProto at the beginning of `data`."""
    position = 0
    try:
        while position < len(data):
            tag, after = _varint(data, position)
            field, wire = tag >> 3, tag & 7
            if field not in _FIELDS or (field == 1 and position):
                break
            size, after = _varint(data, after)
            if wire == _BYTES:
                after += size
            elif wire != _VARINT:
                break
            if after > len(data):
                break
            position = after
    except IndexError:
        pass
    return position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
