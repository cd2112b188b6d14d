"""Reads the arrays of a checkpoint, and compares them with the wanted ones."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import SingleDeviceSharding

from shared_pathways_service.elastic.trees import Tree

__all__ = ["differences", "is_readable", "read"]

#: Error messages of TensorStore and Orbax about missing or damaged data.
_DAMAGE: Final = ("DATA_LOSS", "OUT_OF_RANGE", "NOT_FOUND", "FAILED_PRECONDITION", "decod", "JSON")


def differences(directory: epath.Path, like: Tree) -> list[str]:
    """Returns how the arrays of a checkpoint differ from the wanted ones, one line per array."""
    saved = {
        path: _describe(found.shape, found.dtype)
        for path, found in ocp.tree.to_flat_dict(_metadata(directory)).items()
    }
    wanted = {path: _describe_wanted(leaf) for path, leaf in ocp.tree.to_flat_dict(like).items()}
    lines = []
    for path in sorted(saved.keys() | wanted.keys()):
        was, now = saved.get(path), wanted.get(path)
        if was != now:
            name = ".".join(path)
            if was is None:
                lines.append(f"{name}: {now}, which the checkpoint does not have")
            elif now is None:
                lines.append(f"{name}: only the checkpoint has it, {was}")
            else:
                lines.append(f"{name}: {now}, in the checkpoint {was}")
    return lines


def read(directory: epath.Path, like: Tree) -> Tree:
    """Reads the arrays onto the wanted devices; numpy arrays and numbers into this process."""
    with contextlib.closing(ocp.StandardCheckpointHandler()) as handler:
        wanted = jax.tree.map(_placed, like)
        found = handler.restore(directory, args=ocp.args.StandardRestore(wanted))
        return jax.tree.map(_as_keys, found, wanted)


def is_readable(directory: epath.Path) -> bool:
    """Returns whether all arrays can be read, without using devices; raises other problems."""
    try:
        with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
            to_host = ocp.RestoreArgs(restore_type=np.ndarray)
            args = jax.tree.map(lambda _: to_host, _metadata(directory))
            handler.restore(directory, args=ocp.args.PyTreeRestore(restore_args=args))
    except FileNotFoundError:
        return False
    except (KeyError, ValueError) as error:
        if isinstance(error, KeyError) or any(word in str(error) for word in _DAMAGE):
            return False
        raise
    except Exception as error:
        # Orbax raises a plain Exception if TensorStore could not read a part.
        if any(word in str(cause) for cause in _causes(error) for word in _DAMAGE):
            return False
        raise
    return True


def _causes(error: BaseException | None) -> list[BaseException]:
    found = []
    while error is not None:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _metadata(directory: epath.Path) -> Tree:
    with contextlib.closing(ocp.StandardCheckpointHandler()) as handler:
        return handler.metadata(directory).tree


def _describe(shape: tuple[int, ...], dtype: Any) -> str:
    return f"{np.dtype(dtype).name}[{','.join(map(str, shape))}]"


def _describe_wanted(leaf: Any) -> str:
    if not hasattr(leaf, "shape"):
        leaf = np.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    return _describe(leaf.shape, leaf.dtype)


def _as_keys(found: Any, wanted: Any) -> Any:
    """Makes PRNG keys from bits, which a state has that was saved from this process's memory."""
    is_key = hasattr(wanted, "dtype") and jnp.issubdtype(wanted.dtype, jax.dtypes.prng_key)
    if not is_key or found.dtype == wanted.dtype:
        return found
    impls: list[Any] = []
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), wanted)
    return jax.random.wrap_key_data(found, impl=impls[0])


def _placed(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding is None:
        sharding = SingleDeviceSharding(jax.devices()[0])
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    return leaf
