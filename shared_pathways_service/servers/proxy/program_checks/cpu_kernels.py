"""Checks calls of jaxlib's CPU kernels, which trust the shapes that a program states.

A kernel takes its sizes from one operand and assumes that the other buffers fit. With other shapes
or attributes than JAX's it reads or writes outside of them, or crashes. So every operand and result
must have the shape that LAPACK's documentation of the routine states, and every attribute a value
that the routine knows. jaxlib checks the number of buffers and their element types
(jaxlib/cpu/lapack_kernels.cc, sparse_kernels.cc, tridiagonal_solve_kernels.cc).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

__all__ = ["KERNELS", "SPARSE", "Kernel", "Shape", "check_kernel"]

Shape = tuple[int, ...]
_Sizes = dict[str, int]

#: The only kernel that also trusts values: indices of rows and columns.
SPARSE = "cpu_csr_sparse_dense_ffi"


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """The required form of a kernel's call.

    Attributes:
      operands: Their last dimensions; the first ones, equal in all buffers, are the batch.
        A letter stands for a size, `k` for the smaller of `m` and `n`, `1n` for `n` minus 1.
      choices: The allowed letters of each attribute; JAX writes them as numbers.
      numbers: Attributes that are whole numbers.
      switches: Attributes that are true or false.
      rule: Returns whether sizes and attributes fit each other.
    """

    operands: tuple[str, ...]
    results: tuple[str, ...]
    choices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    numbers: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    rule: Callable[[_Sizes, Mapping[str, int]], bool] = lambda _sizes, _attributes: True

    def types(self) -> dict[str, str]:
        """Returns the type of each attribute, as MLIR writes it."""
        return {
            **dict.fromkeys(self.choices, "ui8"),
            **dict.fromkeys(self.numbers, "i32"),
            **dict.fromkeys(self.switches, "bool"),
        }


def _kernel(
    shapes: str,
    *,
    numbers: tuple[str, ...] = (),
    switches: tuple[str, ...] = (),
    rule: Callable[[_Sizes, Mapping[str, int]], bool] = lambda _sizes, _attributes: True,
    **choices: str,
) -> Kernel:
    operands, results = (
        tuple(dims.strip("[]") for dims in side.split()) for side in shapes.split("->")
    )
    return Kernel(operands, results, choices, numbers, switches, rule)


def _triangle(sizes: _Sizes, attributes: Mapping[str, int]) -> bool:
    return sizes["t"] == (sizes["m"] if attributes["side"] == ord("L") else sizes["n"])


def _reflectors(sizes: _Sizes, attributes: Mapping[str, int]) -> bool:
    order = sizes["m"] if attributes["left"] else sizes["n"]
    return sizes["r"] == order and sizes["t"] <= min(sizes["c"], order)


def _factors(sizes: _Sizes, attributes: Mapping[str, int]) -> bool:
    full = (sizes["u"], sizes["v"]) == (sizes["m"], sizes["n"])
    small = sizes["u"] == sizes["v"] == min(sizes["m"], sizes["n"])
    mode = attributes["mode"]
    return full if mode == ord("A") else small if mode == ord("S") else full or small


def _balanced(sizes: _Sizes, attributes: Mapping[str, int]) -> bool:
    return 1 <= attributes["low"] <= attributes["high"] <= sizes["n"]


_SVD = _kernel("[m,n] -> [m,n] [k] [m,u] [v,n] []", mode="ASN", rule=_factors)
_EIGH = _kernel("[n,n] -> [n,n] [n] []", mode="NV", uplo="LU")
_REFLECT = _kernel("[m,n] [t] -> [m,n]", rule=lambda s, _: s["t"] <= s["n"] <= s["m"])
_MULTIPLY = _kernel("[r,c] [t] [m,n] -> [m,n]", switches=("left", "transpose"), rule=_reflectors)
_TRIDIAGONAL = _kernel("[n,n] -> [n,n] [n] [1n] [1n] []", uplo="LU")

#: LAPACK's routines without the letter of their type, with the letters for which they exist.
_ROUTINES: tuple[tuple[str, str, Kernel], ...] = (
    ("sdcz", "trsm", _kernel("[t,t] [m,n] -> [m,n]", side="LR", uplo="LU", trans_x="NTC",
                             diag="NU", rule=_triangle)),
    ("sdcz", "getrf", _kernel("[m,n] -> [m,n] [k] []")),
    ("sdcz", "geqrf", _kernel("[m,n] -> [m,n] [k]")),
    ("sdcz", "geqp3", _kernel("[m,n] [n] -> [m,n] [n] [k]")),
    ("sd", "orgqr", _REFLECT),
    ("cz", "ungqr", _REFLECT),
    ("sd", "ormqr", _MULTIPLY),
    ("cz", "unmqr", _MULTIPLY),
    ("sdcz", "potrf", _kernel("[n,n] -> [n,n] []", uplo="LU")),
    ("sdcz", "gesdd", _SVD),
    ("sdcz", "gesvd", _SVD),
    ("sd", "syevd", _EIGH),
    ("cz", "heevd", _EIGH),
    ("sd", "geev", _kernel("[n,n] -> [n] [n] [n,n] [n,n] []", compute_left="NV",
                           compute_right="NV")),
    ("cz", "geev", _kernel("[n,n] -> [n] [n,n] [n,n] []", compute_left="NV", compute_right="NV")),
    ("sd", "gees", _kernel("[n,n] -> [n,n] [n,n] [n] [n] [] []", mode="NV", sort="N")),
    ("cz", "gees", _kernel("[n,n] -> [n,n] [n,n] [n] [] []", mode="NV", sort="N")),
    ("sdcz", "gehrd", _kernel("[n,n] -> [n,n] [1n] []", numbers=("low", "high"), rule=_balanced)),
    ("sd", "sytrd", _TRIDIAGONAL),
    ("cz", "hetrd", _TRIDIAGONAL),
    ("sdcz", "gtsv", _kernel("[m] [m] [m] [m,n] -> [m] [m] [m] [m,n] []")),
)  # fmt: skip

#: The kernels of every supported jaxlib, by the names that programs use.
KERNELS: dict[str, Kernel] = {
    f"lapack_{letter}{routine}_ffi": kernel
    for letters, routine, kernel in _ROUTINES
    for letter in letters
} | {
    "tridiagonal_solve_perturbed_ffi": _kernel("[m] [m] [m] [m,n] -> [m,n]"),
    SPARSE: _kernel("[z] [r] [z] [m] -> [n]"),
}


def check_kernel(
    kernel: Kernel,
    operands: Sequence[Shape],
    results: Sequence[Shape],
    attributes: Mapping[str, int],
    batch_dims: int,
) -> str:
    """Returns what is wrong with a call; empty if it is right.

    A negative dimension is unknown, a switch 0 or 1, and `batch_dims` the number of first
    dimensions that XLA may split among devices.
    """
    if any(size < 0 for shape in (*operands, *results) for size in shape):
        return "all sizes must be known"
    if problem := _wrong_attribute(kernel, attributes):
        return problem
    batch = 0
    if kernel is KERNELS[SPARSE]:
        fits = _is_sparse(operands, results)
    else:
        sizes = _sizes(kernel, operands, results)
        fits = sizes is not None and kernel.rule(sizes, attributes)
        batch = len(operands[0]) - _rank(kernel.operands[0]) if fits else 0
    if not fits:
        return _shapes(operands, results)
    if not 0 <= batch_dims <= batch:
        return f"num_batch_dims must be from 0 to {batch}, not {batch_dims}"
    return ""


def _wrong_attribute(kernel: Kernel, attributes: Mapping[str, int]) -> str:
    expected = {*kernel.choices, *kernel.numbers, *kernel.switches}
    if attributes.keys() != expected:
        return f"its attributes must be {sorted(expected)}, not {sorted(attributes)}"
    for name, letters in kernel.choices.items():
        if attributes[name] not in map(ord, letters):
            numbers = " or ".join(f"{ord(letter)} ({letter})" for letter in letters)
            return f"{name} must be {numbers}, not {attributes[name]}"
    return ""


def _shapes(operands: Sequence[Shape], results: Sequence[Shape]) -> str:
    written = [" ".join(str(list(shape)) for shape in side) for side in (operands, results)]
    return f"its shapes do not fit together: {written[0]} -> {written[1]}"


def _rank(dims: str) -> int:
    return dims.count(",") + 1 if dims else 0


def _sizes(kernel: Kernel, operands: Sequence[Shape], results: Sequence[Shape]) -> _Sizes | None:
    """Returns the size of each letter, or None if the shapes do not fit."""
    if (len(operands), len(results)) != (len(kernel.operands), len(kernel.results)):
        return None
    batch = operands[0][: max(len(operands[0]) - _rank(kernel.operands[0]), 0)]
    sizes: _Sizes = {}
    for dims, shape in zip((*kernel.operands, *kernel.results), (*operands, *results), strict=True):
        letters = dims.split(",") if dims else []
        if len(shape) != len(batch) + len(letters) or shape[: len(batch)] != batch:
            return None
        for letter, size in zip(letters, shape[len(batch) :], strict=True):
            if letter == "k":
                wanted = min(sizes["m"], sizes["n"])
            elif letter == "1n":
                wanted = sizes["n"] - 1
            else:
                wanted = sizes.setdefault(letter, size)
            if size != wanted:
                return None
    return sizes


def _is_sparse(operands: Sequence[Shape], results: Sequence[Shape]) -> bool:
    """Whether values, row pointers, columns and a dense matrix or vector fit each other."""
    if [len(shape) for shape in operands[:3]] != [1, 1, 1] or len(operands) != 4:
        return False
    (values,), (pointers,), (columns,), dense = operands
    if len(results) != 1 or not 1 <= len(dense) == len(results[0]) <= 2:
        return False
    (result,) = results
    # (Without columns no entry can have an index.)
    return (
        values == columns
        and pointers == result[0] + 1
        and dense[1:] == result[1:]
        and (dense[0] > 0 or values == 0)
    )
