"""Reads and writes programs as MLIR modules, and determines their main functions' types."""

from __future__ import annotations

import dataclasses
import functools
import io
from typing import Any

from jax._src.interpreters import mlir as _jax_mlir
from jaxlib.mlir import ir, passmanager

from shared_pathways_service.servers.xla.operation_attributes import TOKEN_TYPE
from shared_pathways_service.servers.xla.program_bytecode import check_bytecode
from shared_pathways_service.servers.xla.program_text import check_text
from shared_pathways_service.servers.xla.xla_internals import read_portable_artifact

__all__ = [
    "MainTypes",
    "TensorType",
    "canonical",
    "main_types",
    "mlir_context",
    "name_of",
    "parse",
    "written",
]


@dataclasses.dataclass(frozen=True, slots=True)
class TensorType:
    """An argument or result of a program: StableHLO's element type, and shape.

    A token's element type is ``token``; it has no dimensions.
    """

    element: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class MainTypes:
    """The arguments, with the indices of donated ones, and results of a main function, globally."""

    arguments: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    donated: tuple[int, ...]


@functools.cache
def mlir_context() -> Any:
    """Returns a context with every dialect of programs."""
    return _jax_mlir.make_ir_context()


def parse(program: bytes) -> Any:
    """Returns portable StableHLO, or MLIR as text or bytecode, as an MLIR module.

    A program with which the parser would crash is refused.
    """
    check_text(program)
    context = mlir_context()
    with context:
        check_bytecode(program)
        try:
            read = read_portable_artifact(program, context)
        except Exception:  # noqa: BLE001 - its type is jaxlib's; what is no artifact may be MLIR
            read = program
        if isinstance(read, str):  # of a portable artifact, in some releases
            read = read.encode()
            check_text(read, verified=True)
        return ir.Module.parse(read) if isinstance(read, bytes) else read


def name_of(module: Any) -> str:
    """Returns a parsed program's name; empty if it has none."""
    with mlir_context():
        attributes = module.operation.attributes
        return str(attributes["sym_name"].value) if "sym_name" in attributes else ""


def main_types(module: Any) -> MainTypes:
    """Returns the arguments and results of a parsed program's main function."""
    with mlir_context():
        for operation in module.body.operations:
            if operation.operation.name == "func.func" and operation.name.value == "main":
                return MainTypes(
                    tuple(_tensor(t) for t in operation.type.inputs),
                    tuple(_tensor(t) for t in operation.type.results),
                    _donated(operation, len(operation.type.inputs)),
                )
    raise ValueError("INVALID_ARGUMENT: the program has no main function")


def canonical(module: Any) -> bytes:
    """Returns a parsed program's bytes without source locations, which the module loses too."""
    with mlir_context():
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
    return written(module)


def written(module: Any) -> bytes:
    """Returns a parsed program's bytes, as `xla.XlaClient.compile` takes them."""
    with mlir_context():
        buffer = io.BytesIO()
        module.operation.write_bytecode(file=buffer)
    return buffer.getvalue()


def _tensor(mlir_type: Any) -> TensorType:
    if str(mlir_type) == TOKEN_TYPE:
        return TensorType("token", ())
    ranked = ir.RankedTensorType(mlir_type)
    return TensorType(str(ranked.element_type), tuple(ranked.shape))


def _donated(function: Any, count: int) -> tuple[int, ...]:
    try:
        attributes = list(function.arg_attrs)
    except KeyError:  # written without any attribute
        return ()
    donors = {"jax.buffer_donor", "tf.aliasing_output"}
    return tuple(i for i in range(count) if any(entry.name in donors for entry in attributes[i]))
