"""Removes a client's compile options that would make the proxy write or read files.

XLA's debug options name files and directories, and its flags accompany each program:
``XLA_FLAGS=--xla_dump_to=…`` on a laptop would make the proxy fill another machine's disk. So a
client's options of files are ignored, and the proxy's own flags are used: its operator may request
dumps (``--xla_dump_to=…`` among the proxy's flags). As these options are no longer part of a
program, they do not change its key in the cache of compiled programs either.

Options are identified by their numbers, which XLA never reuses. A text option that is not listed
here as harmless is treated as the name of a file.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from shared_pathways_service.protocol.ifrt import xla_pb2
from shared_pathways_service.servers.devices.status_errors import StatusError, invalid_argument

__all__ = ["FILES", "HARMLESS", "TEXTS", "check_overrides", "without_files"]

#: XLA's DebugOptions that make it write or read files, pass such options on (to LLVM, to ptxas, to
#: a table of configurations), or describe the form of dumps.
FILES = {
    "xla_backend_extra_options": 500,
    "xla_candidate_configs_file": 544,
    "xla_dump_buffer_assignment_analysis": 466,
    "xla_dump_compact_gte": 495,
    "xla_dump_compress_protos": 151,
    "xla_dump_disable_metadata": 153,
    "xla_dump_emitter_re": 433,
    "xla_dump_enable_mlir_pretty_form": 185,
    "xla_dump_full_hlo_config": 381,
    "xla_dump_fusion_visualization": 149,
    "xla_dump_hlo_as_dot": 114,
    "xla_dump_hlo_as_html": 116,
    "xla_dump_hlo_as_long_text": 164,
    "xla_dump_hlo_as_proto": 113,
    "xla_dump_hlo_as_riegeli": 498,
    "xla_dump_hlo_as_text": 112,
    "xla_dump_hlo_as_url": 115,
    "xla_dump_hlo_module_re": 110,
    "xla_dump_hlo_pass_re": 111,
    "xla_dump_hlo_pipeline_re": 154,
    "xla_dump_hlo_snapshots": 118,
    "xla_dump_hlo_to_subfolder": 502,
    "xla_dump_hlo_unoptimized_snapshots": 405,
    "xla_dump_include_timestamp": 131,
    "xla_dump_large_constants": 290,
    "xla_dump_latency_hiding_schedule": 182,
    "xla_dump_max_hlo_modules": 132,
    "xla_dump_module_metadata": 144,
    "xla_dump_to": 109,
    "xla_enable_dumping": 253,
    "xla_enable_hlo_modules_upload": 535,
    "xla_force_config": 543,
    "xla_gpu_algorithm_denylist_path": 128,
    "xla_gpu_cuda_data_dir": 61,
    "xla_gpu_dump_autotune_logs_to": 292,
    "xla_gpu_dump_autotune_results_to": 222,
    "xla_gpu_dump_autotuned_gemm_fusions": 232,
    "xla_gpu_dump_autotuned_instructions": 445,
    "xla_gpu_dump_cost_model_top_k_candidates_to": 540,
    "xla_gpu_dump_llvmir": 155,
    "xla_gpu_experimental_autotuner_cache_dir": 407,
    "xla_gpu_experimental_collective_perf_table_path": 377,
    "xla_gpu_experimental_dump_fdo_profiles": 338,
    "xla_gpu_experimental_dump_gpu_executable": 427,
    "xla_gpu_experimental_matmul_perf_table_path": 383,
    "xla_gpu_gemm_autotuner_override_file": 434,
    "xla_gpu_kernel_cache_file": 306,
    "xla_gpu_llvm_ir_file": 150,
    "xla_gpu_load_autotune_results_from": 223,
    "xla_gpu_per_fusion_autotune_cache_dir": 310,
    "xla_gpu_pgle_profile_file_or_directory_path": 210,
    "xla_gpu_ptx_compiler_extra_flags": 491,
    "xla_gpu_ptx_file": 127,
    "xla_gpu_target_config_filename": 261,
    "xla_gpu_topology_filename": 554,
}
#: Text options that name no file: passes, timeouts, kinds of processors and of collectives.
TEXTS = {
    "xla_cpu_max_isa": 333,
    "xla_disable_hlo_passes": 30,
    "xla_enable_hlo_passes_only": 124,
    "xla_gpu_collective_domain_assignment": 536,
    "xla_gpu_collectives_implementation": 468,
    "xla_gpu_device_execution_terminate_timeout": 553,
    "xla_gpu_execution_terminate_timeout": 451,
    "xla_gpu_hlo_custom_call_allowlist": 537,
    "xla_gpu_override_gemm_autotuner": 295,
    "xla_run_hlo_passes_starting_from": 496,
}
#: Lists of choices, and messages, which protobuf encodes as text; and a switch whose name resembles
#: a file's.
HARMLESS = {
    "xla_cpu_experimental_onednn_fusion_type": 399,
    "xla_cpu_experimental_xnn_fusion_type": 400,
    "xla_cpu_experimental_ynn_fusion_type": 422,
    "xla_enable_nccl_symmetric_buffers_for_collectives": 503,
    "xla_gpu_analytical_latency_estimator_options": 357,
    "xla_gpu_disable_async_collectives": 289,
    "xla_gpu_enable_collectives_command_buffer_filter": 497,
    "xla_gpu_enable_command_buffer": 258,
    "xla_gpu_experimental_autotune_backends": 442,
    "xla_gpu_experimental_cost_model_gemm_tiling_options": 474,
    "xla_gpu_experimental_thunk_buffer_debug_filter": 424,
    "xla_gpu_experimental_use_collective_kernels": 516,
    "xla_gpu_unsupported_use_cross_host_one_shot_kernel": 541,
    "xla_hlo_evaluator_use_fast_path": 106,
}

_NAMES = {number: name for name, number in (FILES | TEXTS | HARMLESS).items()}
_DROPPED = frozenset(FILES.values())
_KEPT = frozenset((TEXTS | HARMLESS).values())
#: Parts of names of options of other XLA versions that concern files.
_LIKE_FILES = re.compile(r"(^|_)dump(_|ing|$)|_(file|filename|dir|directory|path)s?$|_(to|from)$")
_NAME = re.compile(r"[A-Za-z0-9_]*")
#: Text that is a switch, a number, or a choice (XLA refuses other text).
_NO_FILE = re.compile(r"\w*|[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?")

#: CompileOptionsProto.env_option_overrides, its keys and values, and the text of a value.
_OVERRIDES, _KEY, _VALUE, _TEXT = 7, 1, 2, 1
_VARINT, _FIXED_64, _LENGTH, _FIXED_32 = 0, 1, 2, 5
#: The fields of a value: text, boolean, integer, floating-point number.
_WIRE_TYPES = {_TEXT: _LENGTH, 2: _VARINT, 3: _VARINT, 4: _FIXED_64}


class _Field(NamedTuple):
    number: int
    wire_type: int
    content: bytes  # as it is written, without the length
    whole: bytes

    def is_value(self) -> bool:
        """Whether this is the value of an override, as protobuf encodes it."""
        if _WIRE_TYPES.get(self.number) != self.wire_type:
            return False
        if self.number == _TEXT:
            return self.whole == _written(_TEXT, self.content)
        return self.whole[0] == self.number << 3 | self.wire_type


def without_files(options: bytes, own: bytes) -> tuple[bytes, list[str]]:
    """Drops options that concern files from a client's serialised xla.CompileOptionsProto.

    The files of the proxy's own debug options are used instead. Also returns the names of the
    dropped options.
    """
    message = xla_pb2.CompileOptionsProto.FromString(options)
    ignored: dict[str, None] = {}
    build = message.executable_build_options
    if build.HasField("debug_options"):
        ours = _own_files(own)
        kept = []
        for field in _fields(build.debug_options.SerializeToString()):
            name = _NAMES.get(field.number, f"debug option number {field.number}")
            if name in TEXTS or (name in FILES and field.wire_type == _LENGTH):
                _check_text(name, field.content)
            if field.number not in _DROPPED and (
                field.wire_type != _LENGTH or field.number in _KEPT
            ):
                kept.append(field.whole)
            elif field.content.strip(b"\0") and field.whole not in ours:
                ignored[name] = None
        build.debug_options.ParseFromString(b"".join((*kept, *ours)))
    rest = []
    for field in _fields(message.SerializeToString()):
        name = _override_of_files(field) if field.number == _OVERRIDES else ""
        if name:
            ignored[name] = None
        else:
            rest.append(field.whole)
    return b"".join(rest), sorted(ignored)


def check_overrides(overrides: Iterable[tuple[str, object]]) -> None:
    """Refuses overrides that concern files, as XLA itself has parsed them.

    `without_files` has dropped them before. This holds even if XLA parses other bytes.
    """
    for name, value in overrides:
        if _concerns_files(name, value if isinstance(value, str) else ""):
            raise invalid_argument(
                f"compile options: {name} in env_option_overrides would write or read files"
            )


@functools.lru_cache(maxsize=1)
def _own_files(own: bytes) -> Sequence[bytes]:
    return [field.whole for field in _fields(own) if field.number in _DROPPED]


def _override_of_files(field: _Field) -> str:
    """Returns the name of an override that concerns files; empty for another override.

    XLA ignores a field of the wrong wire type and merges a value that is given twice. So only the
    form that protobuf's writers use is accepted, and this reads what XLA will read.
    """
    if field.wire_type != _LENGTH:
        raise _malformed("an entry")
    entry = {part.number: part.content for part in _fields(field.content)}
    key = entry.get(_KEY, b"")
    name = _check_text("a name in env_option_overrides", key)
    value = entry.get(_VALUE, b"")
    if field.content != _written(_KEY, key) + _written(_VALUE, value):
        raise _malformed(f"the entry {name!r}")
    parts = list(_fields(value))
    if len(parts) != 1 or not parts[0].is_value():
        raise _malformed(f"the value of {name!r}")
    text = ""
    if parts[0].number == _TEXT:
        text = _check_text(f"{name} in env_option_overrides", parts[0].content)
    return name if _concerns_files(name, text) else ""


def _concerns_files(name: str, text: str) -> bool:
    # (XLA refuses a name that none of its options can have.)
    if name in TEXTS or name in HARMLESS or not _NAME.fullmatch(name):
        return False
    if name in FILES or _LIKE_FILES.search(name):
        return True
    return not _NO_FILE.fullmatch(text)


def _malformed(what: str) -> StatusError:
    return invalid_argument(
        f"compile options: {what} in env_option_overrides must have exactly one name and one value"
    )


def _written(number: int, content: bytes) -> bytes:
    """Returns a field of bytes as protobuf encodes it."""
    size = len(content)
    length = bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((number << 3 | _LENGTH, *length, size)) + content


def _check_text(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise invalid_argument(
            f"compile options: {name} must be text in UTF-8, not {data!r}"
        ) from None


def _fields(data: bytes) -> Iterator[_Field]:
    """Yields the fields of a serialised message, in order.

    Protobuf's own reader can return the content of a message, but not write a part of it.
    """
    at = 0
    while at < len(data):
        begin = at
        tag, at = _varint(data, at)
        wire_type = tag & 7
        if wire_type == _VARINT:
            inner = at
            _, at = _varint(data, at)
        elif wire_type == _LENGTH:
            length, inner = _varint(data, at)
            at = inner + length
        elif wire_type in (_FIXED_32, _FIXED_64):
            inner = at
            at += 4 if wire_type == _FIXED_32 else 8
        else:
            at = len(data) + 1  # groups: XLA has none
        if at > len(data):
            raise invalid_argument(f"compile options: field {tag >> 3} is not an option of XLA")
        yield _Field(tag >> 3, wire_type, data[inner:at], data[begin:at])


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns a number and the offset after it."""
    number = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise invalid_argument("compile options: a number is truncated")
