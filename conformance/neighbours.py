"""Uses JAX on slices together with another library in one process: `scripts/neighbours`."""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import multiprocessing
from typing import Any

import google.protobuf
import grpc
import jax
import jax.numpy as jnp
import numpy as np

from shared_pathways_service import isc_pathways

#: Seconds after which a program that hangs shows where.
_HUNG_S = 600.0


def use_torch(torch: Any) -> None:
    """Exchanges arrays with PyTorch, and reads from its workers."""
    tensor = torch.arange(4.0)
    array = jnp.asarray(tensor.numpy())
    check(float(torch.from_numpy(np.array(array)).sum()), 6)
    data = importlib.import_module("torch.utils.data")
    for way in multiprocessing.get_all_start_methods():
        loader = data.DataLoader(
            [float(n) for n in range(8)], batch_size=4, num_workers=2, multiprocessing_context=way
        )
        check(sum(float(jnp.asarray(batch.numpy()).sum()) for batch in loader), 28)


def use_tensorflow(tensorflow: Any) -> None:
    """Exchanges arrays with TensorFlow, and reads from its pipelines."""
    batches = tensorflow.data.Dataset.range(8).batch(4).as_numpy_iterator()
    check(sum(int(jnp.asarray(batch).sum()) for batch in batches), 28)
    check(float(jnp.asarray(tensorflow.constant([1.0, 2.0]).numpy()).sum()), 3)
    doubled = tensorflow.function(lambda a: a * 2)
    check(float(doubled(tensorflow.constant(2.0))), 4)


def check(found: float, wanted: float) -> None:
    """Raises an error unless the two are equal."""
    if found != wanted:
        raise AssertionError(f"{found} is not {wanted}")


def main() -> None:
    """Runs one library, imported before or after connect()."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=("torch", "tensorflow"))
    parser.add_argument("when", choices=("before", "after"))
    options = parser.parse_args()
    faulthandler.dump_traceback_later(_HUNG_S, exit=True)
    if options.when == "before":
        importlib.import_module(options.library)
    with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}):
        check(float(jnp.arange(4).sum()), 6)
        library = importlib.import_module(options.library)
        (use_torch if options.library == "torch" else use_tensorflow)(library)
        check(float(jax.jit(lambda x: x @ x.T)(jnp.ones((4, 4))).sum()), 64)
    versions = f"jax {jax.__version__}, protobuf {google.protobuf.__version__}"
    print(
        f"{options.library} {library.__version__}, imported {options.when} connect(): works, with "
        f"{versions}, grpcio {grpc.__version__}"
    )


if __name__ == "__main__":
    main()
