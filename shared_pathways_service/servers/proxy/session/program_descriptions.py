"""Handles requests that describe programs: their metadata, costs and text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from shared_pathways_service.protocol.ifrt import core_pb2, proxy_pb2, status_pb2, xla_pb2
from shared_pathways_service.servers.devices.status_errors import Code, StatusError, from_exception
from shared_pathways_service.servers.proxy.session.session import Call, Handler, Session

__all__ = ["HANDLERS"]

_LayoutList = proxy_pb2.LoadedExecutableMetadataResponse.LayoutList


def _metadata(
    session: Session, request: proxy_pb2.LoadedExecutableMetadataRequest, call: Call
) -> None:
    program = session.program(request.loaded_executable_handle)
    executable = program.executable
    response = call.response.loaded_executable_metadata_response
    parameters = executable.parameter_shardings()
    if parameters is not None:
        response.parameter_shardings.SetInParent()
        response.parameter_shardings.shardings.extend(parameters)
    outputs = executable.result_shardings()
    if outputs is not None:
        response.output_shardings.SetInParent()
        response.output_shardings.shardings.extend(outputs)
    _fill_layouts(
        executable.parameter_layouts,
        response.parameter_layouts_list,
        response.parameter_layouts_error,
    )
    _fill_layouts(
        executable.result_layouts, response.output_layouts_list, response.output_layouts_error
    )
    response.output_memory_kinds.SetInParent()
    for kinds in executable.result_memory_kinds():
        response.output_memory_kinds.memory_kind_lists.add().memory_kinds.extend(kinds)
    response.donated_input_indices.SetInParent()
    response.donated_input_indices.donated_input_indices.extend(sorted(program.donated))
    response.compiled_memory_stats.CopyFrom(executable.memory_report())
    response.size_of_generated_code_in_bytes = executable.code_bytes


def _fill_layouts(
    get: Callable[[], Sequence[str]], found: _LayoutList, error: status_pb2.StatusProto
) -> None:
    # XLA gives no layouts of tokens, nor of values with tokens.
    try:
        layouts = list(map(_layout, get()))
    except Exception as raised:  # noqa: BLE001 - whatever it is, the client receives it
        from_exception(raised).fill(error)
    else:
        found.SetInParent()
        found.layouts.extend(layouts)


_LAYOUT = re.compile(r"\{([0-9,]*)[^}]*\}")
_ELEMENT_BITS = re.compile(r"E\((\d+)\)")


def _layout(text: str) -> xla_pb2.LayoutProto:
    """Parses a layout's text: ``{1,0}``, ``{0:E(4)}``."""
    match = _LAYOUT.fullmatch(text)
    if match is None:
        raise StatusError(Code.INTERNAL, f"cannot read the layout {text}")
    message = xla_pb2.LayoutProto()
    message.minor_to_major.extend(int(axis) for axis in match[1].split(",") if axis)
    bits = _ELEMENT_BITS.search(text)
    if bits is not None:
        message.element_size_in_bits = int(bits[1])
    return message


def _cost_analysis(
    session: Session, request: proxy_pb2.LoadedExecutableCostAnalysisRequest, call: Call
) -> bool:
    program = session.program(request.loaded_executable_handle)
    response = call.response.loaded_executable_cost_analysis_response

    def analyse() -> None:
        for name, value in program.executable.costs().items():
            _fill_attribute(response.attributes.attributes[name], value)
        response.attributes.SetInParent()

    return _answer_aside(session, call, response.status, analyse)


def _answer_aside(
    session: Session, call: Call, status: status_pb2.StatusProto, fill: Callable[[], None]
) -> bool:
    def fill_and_answer() -> None:
        try:
            fill()
        except Exception as error:  # noqa: BLE001 - whatever it is, the client receives it
            from_exception(error).fill(status)
        call.answer()

    session.engine.run_aside(fill_and_answer)
    return True


def _fill_attribute(attribute: core_pb2.AttributeMapProto.Value, value: object) -> None:
    if isinstance(value, bool):
        attribute.bool_value = value
    elif isinstance(value, int):
        attribute.int64_value = value
    elif isinstance(value, float):
        attribute.float_value = value
    elif isinstance(value, str):
        attribute.string_value = value.encode()
    elif isinstance(value, list):
        attribute.int64_list_value.elements.extend(value)


def _program_text(
    session: Session, request: proxy_pb2.LoadedExecutableHumanReadableProgramTextRequest, call: Call
) -> bool:
    program = session.program(request.loaded_executable_handle)
    response = call.response.loaded_executable_human_readable_program_text_response

    def print_program() -> None:
        response.human_readable_program_text = program.executable.text()

    return _answer_aside(session, call, response.status, print_program)


HANDLERS: dict[str, Handler] = {
    "loaded_executable_metadata_request": _metadata,
    "loaded_executable_cost_analysis_request": _cost_analysis,
    "loaded_executable_human_readable_program_text_request": _program_text,
}
