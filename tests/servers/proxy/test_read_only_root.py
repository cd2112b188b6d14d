"""A proxy whose root file system is read-only, as `readOnlyRootFilesystem` of its pod makes it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from harness.deadlines import deadline
from harness.processes import REPOSITORY, ServerProcess

pytestmark = [
    # A process that is forked by a server has that server's file systems.
    pytest.mark.real_starts,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0, reason="only root can mount it read-only"
    ),
]

#: Makes the file systems read-only, but for /dev and /proc, and becomes the server.
START = 'mount --bind / / && mount -o remount,bind,ro / && cd "$PWD" && exec "$@"'

PROGRAM = """
import jax, numpy as np
x = jax.device_put(np.ones(1 << 20, dtype=np.float32))
assert float(jax.jit(lambda x: (x * 2).sum())(x)) == 2 << 20
print(len(jax.devices()))
"""


def test_a_proxy_needs_no_file_of_its_own() -> None:
    module = "shared_pathways_service.servers.proxy"
    flags = ["--virtual_slices=tpuv6e:2x2", "--server_port=0"]
    prefix = ("unshare", "--mount", "sh", "-ec", START, "_")
    with ServerProcess(module, flags, prefix=prefix, env={"HOME": "/"}) as proxy:
        assert proxy.ready is not None, "\n".join(proxy.lines)
        assert not os.access(f"/proc/{proxy.pid}/root{REPOSITORY}", os.W_OK)
        variables = {
            "JAX_PLATFORMS": "proxy",
            "JAX_BACKEND_TARGET": f"grpc://127.0.0.1:{proxy.ready['port']}",
            "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
        }
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=deadline(120.0),
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "4\n"
        assert not [line for line in proxy.lines if "Read-only" in line]
