"""Handles requests about the client as a whole: devices, default layouts, default assignments."""

from __future__ import annotations

import jaxlib.version

from shared_pathways_service.protocol.ifrt import core_pb2, proxy_pb2
from shared_pathways_service.servers.devices.dtypes import dtype_of
from shared_pathways_service.servers.devices.status_errors import invalid_argument
from shared_pathways_service.servers.proxy.session.session import Call, Handler, Session

__all__ = ["HANDLERS"]

_PLATFORM_ID = 0x5350535F435055
_RUNTIME = "shared_pathways_service"


def _init(session: Session, _request: proxy_pb2.InitRequest, call: Call) -> None:
    response = call.response.init_response
    platform = session.engine.platform.name
    memory_kinds = session.engine.placings.memory_kinds
    response.session_id = session.session_id
    response.platform_name = platform
    response.platform_version = f"shared-pathways-service, jaxlib {jaxlib.version.__version__}"
    response.platform_id = _PLATFORM_ID
    response.runtime_type = _RUNTIME
    # jax.export asks the client how it writes shardings.
    response.client_attributes.attributes["serialize_with_sdy"].bool_value = True
    count = len(session.engine.devices)
    for info in session.engine.devices:
        name = f"slice {info.slice_index}, chip {info.coords}"
        device = response.all_devices.add(
            id=info.id,
            local_device_id=info.id,
            local_hardware_id=info.id,
            platform_name=platform,
            device_kind=info.kind,
            default_memory_id=info.id,
            memory_ids=[info.id + number * count for number in range(len(memory_kinds))],
            # The result of str(), as for JAX's own CPUs: checkpoints name devices by it.
            debug_string=f"{platform}:{info.id}",
            to_string=f"{platform}:{info.id} ({name})",
        )
        attributes = device.attributes.attributes
        attributes["slice_index"].int64_value = info.slice_index
        attributes["coords"].int64_list_value.elements.extend(info.coords)
        attributes["core_on_chip"].int64_value = 0
        # Libraries group devices by their hosts with it, as process_index is the same for all.
        attributes["virtual_task_index"].int64_value = info.host
        if session.engine.runs_python:
            # JAX finds the CPU device beside a chip by it.
            attributes["colocation_id"].int64_value = info.id % (count // 2)
        for number, kind in enumerate(memory_kinds):
            response.memories.add(
                id=info.id + number * count,
                memory_space_kind=kind,
                kind_id=number,
                device_ids=[info.id],
                debug_string=f"{kind} memory of {info.kind} {info.id}",
                to_string=f"{kind} memory of {platform}:{info.id}",
            )
        response.addressable_device_ids.append(info.id)
        if not info.is_cpu:
            response.primary_device_ids.append(info.id)


def _default_device_assignment(
    session: Session, request: proxy_pb2.GetDefaultDeviceAssignmentRequest, call: Call
) -> None:
    replicas, partitions = request.num_replicas, request.num_partitions
    # (The CPU devices beside the chips come after them.)
    chips = sum(not info.is_cpu for info in session.engine.devices)
    if not 1 <= replicas * partitions <= chips:
        raise invalid_argument(f"{replicas} x {partitions} devices out of {chips}")
    response = call.response.get_default_device_assignment_response
    assignment = response.device_assignment
    assignment.replica_count = replicas
    assignment.computation_count = partitions
    for partition in range(partitions):
        ids = [replica * partitions + partition for replica in range(replicas)]
        assignment.computation_devices.add(replica_device_ids=ids)


def _default_layout(
    session: Session, request: proxy_pb2.GetDefaultLayoutRequest, call: Call
) -> None:
    engine = session.engine
    if request.dtype.kind in {core_pb2.DTypeProto.KIND_TOKEN, core_pb2.DTypeProto.KIND_OPAQUE}:
        raise invalid_argument("tokens have no layout")
    client = engine.placings.single(request.device_id).client
    text = client.default_layout(dtype_of(request.dtype.kind), request.dims, request.device_id)
    call.response.get_default_layout_response.serialized_pjrt_layout = text.encode()


HANDLERS: dict[str, Handler] = {
    "init_request": _init,
    "get_default_device_assignment_request": _default_device_assignment,
    "get_default_layout_request": _default_layout,
}
