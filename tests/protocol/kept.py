"""What earlier versions of this project speak: descriptors of its own protocols, kept as files.

python -m tests.protocol.kept       # keeps what is spoken now, under the package's version
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from google.protobuf import descriptor_pb2

from shared_pathways_service.protocol import (
    proxy_status_pb2,
    resource_manager_pb2,
    supervisor_pb2,
    tenant_pb2,
)
from shared_pathways_service.version import __version__

DIRECTORY = Path(__file__).parent / "kept"
MODULES = (proxy_status_pb2, resource_manager_pb2, supervisor_pb2, tenant_pb2)


def spoken_now() -> descriptor_pb2.FileDescriptorSet:
    """Returns the descriptors of this version's own protocols."""
    found = descriptor_pb2.FileDescriptorSet()
    for module in MODULES:
        module.DESCRIPTOR.CopyToProto(found.file.add())
    return found


def kept(path: Path) -> descriptor_pb2.FileDescriptorSet:
    """Returns what a version spoke."""
    return descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())


def messages(
    files: descriptor_pb2.FileDescriptorSet,
) -> Iterator[tuple[str, descriptor_pb2.DescriptorProto]]:
    """Yields every message, also those within others, with its full name."""

    def within(
        name: str, message: descriptor_pb2.DescriptorProto
    ) -> Iterator[tuple[str, descriptor_pb2.DescriptorProto]]:
        yield name, message
        for inner in message.nested_type:
            yield from within(f"{name}.{inner.name}", inner)

    for file in files.file:
        for message in file.message_type:
            yield from within(f"{file.package}.{message.name}", message)


def methods(
    files: descriptor_pb2.FileDescriptorSet,
) -> dict[str, descriptor_pb2.MethodDescriptorProto]:
    """Returns every method by its full name."""
    return {
        f"{file.package}.{service.name}/{method.name}": method
        for file in files.file
        for service in file.service
        for method in service.method
    }


if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    (DIRECTORY / f"{__version__}.binpb").write_bytes(spoken_now().SerializeToString())
