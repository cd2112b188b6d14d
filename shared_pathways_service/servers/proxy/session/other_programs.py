"""Refuses programs that are not XLA's, by the name of what they are."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    invalid_argument,
)

__all__ = ["refusal"]

_CUSTOM_PROGRAM = "xla::ifrt::CustomCallProgram"
#: How JAX begins the type of a custom program with a function of colocated_python.
_COLOCATED_PYTHON = "jax_colocated_python_"
#: What JAX appends to the name of a function whose results it does not know yet.
_FIRST_CALL = "_output_specs_and_push_result"


def refusal(program: core_pb2.Serialized) -> StatusError:
    """Returns the error for a program that is not XLA's."""
    if program.type_name == _CUSTOM_PROGRAM:
        custom = _custom_program(program.data)
        if custom.type.startswith(_COLOCATED_PYTHON):
            function = custom.name.removesuffix(_FIRST_CALL)
            return StatusError(
                Code.UNIMPLEMENTED,
                f"colocated_python function {function!r}: this proxy runs no Python beside its "
                f"devices; call the function in your own process, with numpy arrays "
                f"(numpy.asarray)",
            )
    return StatusError(
        Code.UNIMPLEMENTED,
        f"programs of type {program.type_name!r}: this proxy runs only those of XLA",
    )


def _custom_program(data: bytes) -> core_pb2.CustomCallProgramProto:
    try:
        return core_pb2.CustomCallProgramProto.FromString(data)
    except DecodeError as error:
        raise invalid_argument(f"not a CustomCallProgramProto: {error}") from error
