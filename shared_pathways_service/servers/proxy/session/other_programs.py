"""Refuses programs that are not XLA's, by the name of what they are."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    invalid_argument,
)

__all__ = ["colocated_python", "refusal", "shown_name"]

_CUSTOM_PROGRAM = "xla::ifrt::CustomCallProgram"
#: How JAX begins the type of a custom program with a function of colocated_python.
_COLOCATED_PYTHON = "jax_colocated_python_"
#: What JAX appends to the name of a function whose results it does not know yet, for a first call
#: that returns their types, and a second one that returns the results of the first.
_FIRST_CALL = "_output_specs_and_push_result"
_RESULT = "_pop_result"


def refusal(program: core_pb2.Serialized) -> StatusError:
    """Returns the error for a program that is not XLA's."""
    custom = colocated_python(program)
    if custom is not None:
        return StatusError(
            Code.UNIMPLEMENTED,
            f"colocated_python function {shown_name(custom.name)!r}: this proxy runs no Python "
            f"beside its devices; connect with proxy_options=['sidecar:true'] if the service "
            f"allows it, or call the function in your own process, with numpy arrays "
            f"(numpy.asarray)",
        )
    return StatusError(
        Code.UNIMPLEMENTED,
        f"programs of type {program.type_name!r}: this proxy runs only those of XLA",
    )


def shown_name(name: str) -> str:
    """Returns the name of a function of colocated_python as its user knows it."""
    return name.removesuffix(_FIRST_CALL).removesuffix(_RESULT)


def colocated_python(program: core_pb2.Serialized) -> core_pb2.CustomCallProgramProto | None:
    """Returns a function of colocated_python; None for other programs."""
    if program.type_name != _CUSTOM_PROGRAM:
        return None
    try:
        custom = core_pb2.CustomCallProgramProto.FromString(program.data)
    except DecodeError as error:
        raise invalid_argument(f"not a CustomCallProgramProto: {error}") from error
    return custom if custom.type.startswith(_COLOCATED_PYTHON) else None
