"""Our .proto files against the schemas in the installed jaxlib, message by message.

They are those of the newest release of jaxlib; `SINCE` says what older ones do without.
"""

from __future__ import annotations

import functools

import jaxlib.version
import pytest
from google.protobuf import descriptor, descriptor_pb2

from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import core_pb2, proxy_pb2, status_pb2, xla_pb2
from tests.protocol.jaxlib_schemas import jaxlib_messages, jaxlib_schemas

#: Our packages, and jaxlib's that they stand for.
PACKAGES = {
    proxy_pb2: ("xla.ifrt.proxy", "xla.ifrt.proto"),
    core_pb2: ("xla.ifrt",),
    status_pb2: ("tensorflow", "tensorflow.error"),
    xla_pb2: ("xla",),
}
#: Messages that the proxy passes on unread: ours has bytes there.
OPAQUE = {".xla.OpSharding", ".xla.CompileOptionsProto"}
#: Messages of which we declare only what we read.
PARTIAL = {
    "xla.LayoutProto",
    "xla.CompileOptionsProto",
    "xla.DebugOptions",
    "xla.ExecutableBuildOptionsProto",
    "xla.NamedShardingProto",
    "xla.OpSharding",
}

#: Messages, enums, fields and values that not all releases have: the first that does.
SINCE = {
    "xla.MeshProto.IotaTransform": (0, 10, 2),
    "xla.MeshProto.iota_transform": (0, 10, 2),
    "xla.CompiledMemoryStatsProto.total_allocation_bytes": (0, 10, 0),
    "xla.CompiledMemoryStatsProto.indefinite_allocations": (0, 10, 0),
    "xla.CompiledMemoryStatsProto.peak_unpadded_heap_bytes": (0, 10, 0),
    "xla.NamedShardingProto.ReductionOpProto": (0, 11, 0),
    "xla.NamedShardingProto.reduction_op": (0, 11, 0),
    "xla.ifrt.DTypeProto.KIND_F6E2M3FN": (0, 11, 0),
    "xla.ifrt.DTypeProto.KIND_F6E3M2FN": (0, 11, 0),
    "xla.ifrt.XlaCompileOptionsProto.version_number": (0, 11, 0),
    "xla.ifrt.XlaCompileOptionsProto.outputs_bundle_slice_sizes": (0, 11, 0),
}
RELEASE = tuple(int(part) for part in jaxlib.version.__version__.split(".")[:3])
LACKING = {name for name, release in SINCE.items() if release > RELEASE}

Field = descriptor_pb2.FieldDescriptorProto
NAMES = {ours.DESCRIPTOR.package: theirs for ours, theirs in PACKAGES.items()}


@functools.cache
def our_messages() -> dict[str, descriptor.Descriptor]:
    """Ours, by the full name that jaxlib gives the same message."""
    found = {}

    def add(message: descriptor.Descriptor) -> None:
        if expected_name(message.full_name) in LACKING:
            return
        found[their_name(message.full_name)] = message
        for nested in message.nested_types:
            add(nested)

    for module in PACKAGES:
        for message in module.DESCRIPTOR.message_types_by_name.values():
            add(message)
    return found


def candidates_for(ours: str) -> list[str]:
    package = next(p for p in sorted(NAMES, key=len, reverse=True) if ours.startswith(p + "."))
    return [their + ours[len(package) :] for their in NAMES[package]]


def expected_name(ours: str) -> str:
    """A name of jaxlib's, whether this release has it or not."""
    return candidates_for(ours)[0]


def their_name(ours: str) -> str:
    if ours.startswith("google.protobuf."):
        return ours
    candidates = candidates_for(ours)
    known = [name for name in candidates if name in jaxlib_messages() or name in their_enums()]
    assert len(known) == 1, f"{ours}: {candidates}"
    return known[0]


@functools.cache
def their_enums() -> dict[str, descriptor_pb2.EnumDescriptorProto]:
    found = {}
    for schema in jaxlib_schemas().values():
        for enum in schema.enum_type:
            found[f"{schema.package}.{enum.name}"] = enum
    for name, message in jaxlib_messages().items():
        for enum in message.enum_type:
            found[f"{name}.{enum.name}"] = enum
    return found


def as_proto(message: descriptor.Descriptor) -> descriptor_pb2.DescriptorProto:
    proto = descriptor_pb2.DescriptorProto()
    message.CopyToProto(proto)
    return proto


def oneof_name(message: descriptor_pb2.DescriptorProto, field: Field) -> str:
    return message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""


@pytest.mark.parametrize("name", sorted(our_messages()))
def test_message_agrees_with_jaxlib(name: str) -> None:
    ours, theirs = as_proto(our_messages()[name]), jaxlib_messages()[name]
    their_fields = {field.number: field for field in theirs.field}
    our_fields = [field for field in ours.field if f"{name}.{field.name}" not in LACKING]
    if name not in PARTIAL:
        assert {field.number for field in our_fields} == set(their_fields)
    for field in our_fields:
        other = their_fields[field.number]
        assert field.name == other.name
        assert field.label == other.label, field.name
        assert oneof_name(ours, field) == oneof_name(theirs, other), field.name
        if other.type_name in OPAQUE:
            assert field.type in {Field.TYPE_BYTES, Field.TYPE_MESSAGE}
            continue
        assert field.type == other.type, field.name
        if field.type_name:
            assert "." + their_name(field.type_name[1:]) == other.type_name, field.name


@pytest.mark.parametrize("file", ["ifrt_service", "grpc_ifrt_service", "types"])
def test_every_message_of_the_protocol_is_declared(file: str) -> None:
    schema = jaxlib_schemas()[f"xla/python/ifrt_proxy/common/{file}.proto"]
    ours = our_messages()
    assert not [m.name for m in schema.message_type if f"{schema.package}.{m.name}" not in ours]


def test_enums_agree_with_jaxlib() -> None:
    theirs = their_enums()
    enums = [*proxy_pb2.DESCRIPTOR.enum_types_by_name.values()]
    enums += status_pb2.DESCRIPTOR.enum_types_by_name.values()
    enums += [e for m in our_messages().values() for e in m.enum_types]
    assert len(enums) >= 4
    for enum in enums:
        if expected_name(enum.full_name) in LACKING:
            continue
        other = {v.name: v.number for v in theirs[their_name(enum.full_name)].value}
        scope = expected_name(enum.full_name).rpartition(".")[0]
        for value in enum.values:
            if f"{scope}.{value.name}" in LACKING:
                continue
            assert other.pop(value.name) == value.number
        assert not [name for name in other if "DO_NOT_USE" not in name]


def test_service_and_methods_are_jaxlibs() -> None:
    schema = jaxlib_schemas()["xla/python/ifrt_proxy/common/grpc_ifrt_service.proto"]
    (service,) = schema.service
    assert f"{schema.package}.{service.name}" == ifrt.SERVICE
    assert {method.name for method in service.method} == {
        "GetVersion",
        "IfrtSession",
        "HostBufferStore",
        "HostBufferLookup",
        "HostBufferDelete",
        "HostBufferReadFromDisk",
    }


def test_our_packages_are_our_own() -> None:
    assert all(m.DESCRIPTOR.package.startswith("shared_pathways_service.") for m in PACKAGES)
