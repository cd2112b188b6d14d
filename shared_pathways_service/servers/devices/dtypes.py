"""Element types by their three names: IFRT's, numpy's and StableHLO's."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.servers.devices.status_errors import Code, StatusError

__all__ = [
    "KIND_OF_ELEMENT",
    "SIX_BIT_ELEMENTS",
    "STRING",
    "STRING_DTYPE",
    "TOKEN",
    "TOKEN_DTYPE",
    "TWO_BIT_ELEMENTS",
    "dtype_of",
    "kind_of_element",
]

_Kind = core_pb2.DTypeProto

# One line per type: IFRT's kind, numpy's type, StableHLO's element type.
_TABLE = (
    (_Kind.KIND_PRED, np.bool_, "i1"),
    (_Kind.KIND_S2, ml_dtypes.int2, "i2"),
    (_Kind.KIND_S4, ml_dtypes.int4, "i4"),
    (_Kind.KIND_S8, np.int8, "i8"),
    (_Kind.KIND_S16, np.int16, "i16"),
    (_Kind.KIND_S32, np.int32, "i32"),
    (_Kind.KIND_S64, np.int64, "i64"),
    (_Kind.KIND_U2, ml_dtypes.uint2, "ui2"),
    (_Kind.KIND_U4, ml_dtypes.uint4, "ui4"),
    (_Kind.KIND_U8, np.uint8, "ui8"),
    (_Kind.KIND_U16, np.uint16, "ui16"),
    (_Kind.KIND_U32, np.uint32, "ui32"),
    (_Kind.KIND_U64, np.uint64, "ui64"),
    (_Kind.KIND_F16, np.float16, "f16"),
    (_Kind.KIND_F32, np.float32, "f32"),
    (_Kind.KIND_F64, np.float64, "f64"),
    (_Kind.KIND_BF16, ml_dtypes.bfloat16, "bf16"),
    (_Kind.KIND_C64, np.complex64, "complex<f32>"),
    (_Kind.KIND_C128, np.complex128, "complex<f64>"),
    (_Kind.KIND_F4E2M1FN, ml_dtypes.float4_e2m1fn, "f4E2M1FN"),
    (_Kind.KIND_F8E3M4, ml_dtypes.float8_e3m4, "f8E3M4"),
    (_Kind.KIND_F8E4M3, ml_dtypes.float8_e4m3, "f8E4M3"),
    (_Kind.KIND_F8E4M3FN, ml_dtypes.float8_e4m3fn, "f8E4M3FN"),
    (_Kind.KIND_F8E4M3B11FNUZ, ml_dtypes.float8_e4m3b11fnuz, "f8E4M3B11FNUZ"),
    (_Kind.KIND_F8E4M3FNUZ, ml_dtypes.float8_e4m3fnuz, "f8E4M3FNUZ"),
    (_Kind.KIND_F8E5M2, ml_dtypes.float8_e5m2, "f8E5M2"),
    (_Kind.KIND_F8E5M2FNUZ, ml_dtypes.float8_e5m2fnuz, "f8E5M2FNUZ"),
    (_Kind.KIND_F8E8M0FNU, ml_dtypes.float8_e8m0fnu, "f8E8M0FNU"),
    (_Kind.KIND_F6E2M3FN, ml_dtypes.float6_e2m3fn, "f6E2M3FN"),
    (_Kind.KIND_F6E3M2FN, ml_dtypes.float6_e3m2fn, "f6E3M2FN"),
)
#: One bit: arrays only, as StableHLO has no such type (JAX writes `int1` as a boolean). Not every
#: release of ml_dtypes has them.
_ONE_BIT = {_Kind.KIND_S1: "int1", _Kind.KIND_U1: "uint1"}
#: StableHLO's floats of six bits, which jaxlib has from 0.11 on.
SIX_BIT_ELEMENTS = ("f6E2M3FN", "f6E3M2FN")
#: StableHLO's integers of two bits. XLA for CPUs (of jaxlib 0.9 to 0.12) crashes at a concatenation
#: of them. Over several devices it gathers wrong values, and crashes or waits for ever in other
#: collectives, which its partitioner adds to any program. (Those of four bits are right.)
TWO_BIT_ELEMENTS = ("i2", "ui2")
#: A token has no data; JAX passes it as an array of booleans.
TOKEN = int(_Kind.KIND_TOKEN)
TOKEN_DTYPE = np.dtype(np.bool_)
#: A string has any length: only functions of colocated_python return such arrays.
STRING = int(_Kind.KIND_STRING)
STRING_DTYPE: np.dtype = np.dtypes.StringDType()
_DTYPES: dict[int, np.dtype] = {int(kind): np.dtype(dtype) for kind, dtype, _ in _TABLE} | {
    int(kind): np.dtype(getattr(ml_dtypes, name))
    for kind, name in _ONE_BIT.items()
    if hasattr(ml_dtypes, name)
}
KIND_OF_ELEMENT: dict[str, int] = {element: int(kind) for kind, _, element in _TABLE}


def dtype_of(kind: int) -> np.dtype:
    """Returns numpy's type of a DTypeProto.Kind."""
    dtype = _DTYPES.get(kind)
    if dtype is None:
        known = kind in core_pb2.DTypeProto.Kind.values()
        name = core_pb2.DTypeProto.Kind.Name(kind) if known else str(kind)  # type: ignore[arg-type]
        raise StatusError(Code.UNIMPLEMENTED, f"arrays of type {name} are not supported")
    return dtype


def kind_of_element(element: str) -> int:
    """Returns the DTypeProto.Kind of a StableHLO element type."""
    kind = KIND_OF_ELEMENT.get(element)
    if kind is None:
        raise StatusError(Code.UNIMPLEMENTED, f"arrays of type {element} are not supported")
    return kind
