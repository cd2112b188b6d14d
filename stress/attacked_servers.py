"""The servers that `stress.attack` attacks, as an attacker knows them."""

from __future__ import annotations

import os
from pathlib import Path

import jaxlib.version

from shared_pathways_service.api.jax_releases import newest_served
from shared_pathways_service.testing.attacks import Target

__all__ = ["AIMED", "EXECUTORS", "MANAGER", "OWN", "VICTIMS", "target_of"]

MANAGER, OWN, VICTIMS = "the resource manager", "the attacker's proxy", "the victim's proxy"
#: With `--engine distributed`, by their proxies.
EXECUTORS = {OWN: "the attacker's executor", VICTIMS: "the victim's executor"}
#: Those whose attacks must leave the victim its rate.
AIMED = (MANAGER, OWN, EXECUTORS[OWN])


def target_of(server: str, address: str) -> Target:
    """Returns a server's address and methods, and what the attacker may show it."""
    if server == MANAGER:
        return _manager(address)
    if server in EXECUTORS.values():
        return _executor(address)
    from shared_pathways_service.protocol import ifrt
    from shared_pathways_service.protocol.ifrt import proxy_pb2

    version = proxy_pb2.GrpcGetVersionRequest()
    for bound in (version.min_version, version.max_version):
        bound.protocol_version = ifrt.PROTOCOL_MAX
        bound.ifrt_serdes_version_number = newest_served(jaxlib.version.__version__)
    lookup = proxy_pb2.GrpcHostBufferLookupRequest(session_id=1 << 40, handle=1)
    delete = proxy_pb2.GrpcHostBufferDeleteRequest(session_id=1 << 40, handle=1)
    path = f"/{ifrt.SERVICE}"
    return Target(
        address=address,
        unary=f"{path}/GetVersion",
        stream=f"{path}/HostBufferLookup",
        request=version.SerializeToString(),
        forged=(
            (f"{path}/HostBufferLookup", (), lookup.SerializeToString()),
            (f"{path}/HostBufferDelete", (), delete.SerializeToString()),
        ),
    )


def _manager(address: str) -> Target:
    from shared_pathways_service.constants import PROTOCOL_MAX, PROTOCOL_MIN
    from shared_pathways_service.protocol import resource_manager_pb2 as pb
    from shared_pathways_service.protocol.auth import bearer
    from shared_pathways_service.protocol.tenant_pb2 import TenantRequest

    path = "/shared_pathways_service.v1.ResourceManager"
    token = (Path(os.environ["SPS_RUNTIME_DIR"]) / "tenants.token").read_text()
    hello = pb.TenantHello(
        versions=pb.VersionRange(min=PROTOCOL_MIN, max=PROTOCOL_MAX),
        tenant=TenantRequest(name="another", virtual_slices=["tpuv6e:2x2"] * 3),
        incarnation="made up",
    )
    release = pb.ReleaseTenantRequest(tenant="another")
    return Target(
        address=address,
        unary=f"{path}/GetStatus",
        stream=f"{path}/TenantSession",
        forged=(
            (f"{path}/TenantSession", (), pb.TenantMessage(hello=hello).SerializeToString()),
            (f"{path}/ReleaseTenant", (), release.SerializeToString()),
        ),
        metadata=bearer(token),
    )


def _executor(address: str) -> Target:
    from shared_pathways_service.protocol import executors_pb2 as pb

    path = "/shared_pathways_service.v1.Executors"
    # (The token is its proxy's, not the tenant's.)
    take = pb.TakeOffered(transfer=1).SerializeToString()
    drive = pb.ExecutorCommands().SerializeToString()
    return Target(
        address=address,
        unary=f"{path}/Take",
        stream=f"{path}/Drive",
        request=take,
        forged=((f"{path}/Take", (), take), (f"{path}/Drive", (), drive)),
    )
