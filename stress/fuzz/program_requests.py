"""Requests that compile and run programs."""

from __future__ import annotations

from harness.proxy.programs import compile_options
from harness.proxy.raw import F32, single, split
from stress.fuzz.conversation import Conversation, request
from stress.fuzz.odd_values import PROGRAMS, SUM, odd_options


@request
def _compile(talk: Conversation, one: int, two: int, picks: list[int]) -> None:
    text, count = PROGRAMS[one % len(PROGRAMS)]
    first = (0, 4, 0, 7)[two % 4]
    pending = talk.send(
        "compile",
        program={"type_name": "xla::ifrt::XlaProgram", "data": text.encode()},
        compile_options={
            "type_name": "xla::ifrt::XlaCompileOptions",
            "data": odd_options(range(first, first + count), picks),
        },
    )
    answer = talk.wait(pending) if talk.hopeful else None
    # Elsewhere the handle is guessed: those of the server are counted from here.
    talk.programs.append(answer.loaded_executable_handle if answer else (1 << 63) + 2 * two)


@request
def _execute(talk: Conversation, one: int, two: int, picks: list[int]) -> None:
    status = talk.new_handle()
    talk.executions.append(status)
    talk.send(
        "loaded_executable_execute",
        loaded_executable_handle=talk.program(one),
        args_handles=[talk.array(pick) for pick in picks],
        result_array_handle=[talk.name() for _ in range(two % 3)],
        result_status_handle=status if two % 2 else 0,
        execute_options={"fill_status": two > 7, "non_donatable_input_indices": picks[:1]},
    )


@request
def _run(talk: Conversation, one: int, two: int, _picks: list[int]) -> None:
    """One that works, mostly."""
    text, count = PROGRAMS[one % 5]
    devices = list(range(count))
    program = talk.wait(
        talk.send(
            "compile",
            program={"type_name": "xla::ifrt::XlaProgram", "data": text.encode()},
            compile_options={
                "type_name": "xla::ifrt::XlaCompileOptions",
                "data": compile_options(devices),
            },
        )
    )
    if program is None:
        return
    talk.programs.append(program.loaded_executable_handle)
    shape = (4,) if count == 1 else (8,)
    arguments = []
    for _ in range(2 if text is SUM else 1):
        arguments.append(talk.name())
        talk.send(
            "make_array_from_host_buffer",
            dtype={"kind": F32},
            shape={"dims": shape},
            sharding=single(0) if count == 1 else split(devices),
            host_buffer_handle=talk.store(shape),
            array_handle=arguments[-1],
        )
    for _ in range(two):
        talk.send(
            "loaded_executable_execute",
            loaded_executable_handle=program.loaded_executable_handle,
            args_handles=arguments,
            result_array_handle=[talk.name() for _ in range(2 if text is SUM else 1)],
        )


@request
def _result(talk: Conversation, one: int, _two: int, _picks: list[int]) -> None:
    handle = talk.executions[one % len(talk.executions)] if talk.executions else one
    talk.send("loaded_executable_fetch_execute_result", result_status_handle=handle)


@request
def _program(talk: Conversation, one: int, two: int, _picks: list[int]) -> None:
    what = (
        "metadata", "cost_analysis", "human_readable_program_text",
        "is_deleted", "delete", "destruct",
    )[two % 6]  # fmt: skip
    talk.send(f"loaded_executable_{what}", loaded_executable_handle=talk.program(one))
