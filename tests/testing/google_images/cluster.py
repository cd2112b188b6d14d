"""Stand-ins for Google's images, run as in a cluster."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from typing import Any

from harness.processes import KIND, ServerProcess
from shared_pathways_service.testing.google_images import (
    PROXY_MODULE,
    SERVER_MODULE,
)

VARIABLE = "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"
OVERRIDE = "PATHWAYS_UNSAFE_UNSAFE_OVERRIDE_GRPC_CREDENTIALS"
PLAINTEXT = {OVERRIDE: "grpc_insecure_override"}
NOBODY = 65534
_numbers = itertools.count(2)

#: Log lines of the page "Troubleshoot Pathways on cloud", with their sources.
PROXY_READY = r"proxy_server\.cc:125\] IFRT proxy server started with status OK$"
SERVER_READY = r"server_lib\.cc:1473\] Pathways Server serving on \[::\]:{}$"
#: What gRPC and XLA write themselves, before their log has a form and a time of day.
OF_LIBRARIES = re.compile(r"WARNING: All log messages before absl|[IWEF]0000 00:00:\d+\.\d{6} ")
ALL_READY = r"multi_job_allocator\.cc:1063\] \*\*\* 1/1 Pathways Slices Now Ready \*\*\*$"


class Cluster:
    """Stand-ins that run; each has a loopback address of its own, and the images' ports."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self.manager = ""

    def start(self, module: str, *flags: str, **variables: str) -> tuple[str, ServerProcess]:
        """Returns the host of a stand-in that was started, and its process."""
        pid = os.getpid()
        host = f"127.{next(_numbers)}.{pid >> 8 & 255}.{pid & 255 or 1}"
        env = {"SPS_BIND_ADDRESS": host, **variables}
        process = ServerProcess(module, flags, env=env, tells_ready=False)
        return host, self._stack.enter_context(process)

    def start_manager(self, *flags: str, **variables: str) -> ServerProcess:
        host, process = self.start(
            SERVER_MODULE,
            "--server_port=29001",
            "--node_type=resource_manager",
            "--instance_count=1",
            f"--instance_type={KIND}",
            "--enforce_kernel_ipv6_support=false",
            *flags,
            **variables,
        )
        process.wait_for_line(SERVER_READY.format(29001))
        self.manager = f"{host}:29001"
        return process

    def start_worker(self, **variables: str) -> ServerProcess:
        _, process = self.start(
            SERVER_MODULE,
            "--server_port=29005",
            f"--resource_manager_address={self.manager}",
            "--gcs_scratch_location=gs://bucket",
            "--tpu_pinned_host_allocation_recycle=true",
            "--tpu_premapped_buffer_size=274877906944",
            "--enforce_kernel_ipv6_support=false",
            **{"MEGASCALE_SLICE_ID": "0", "TPU_TYPE": KIND, **variables},
        )
        return process

    def start_proxy(
        self, *flags: str, kind: str = KIND, insecure: str | None = "true", **variables: str
    ) -> tuple[str, ServerProcess]:
        """Returns the address of a proxy, and its process."""
        manager = [f"--resource_manager_address={self.manager}"] if self.manager else []
        host, process = self.start(
            PROXY_MODULE,
            "--server_port=29000",
            f"--virtual_slices={kind}",
            *manager,
            *flags,
            **({} if insecure is None else {VARIABLE: insecure}),
            **variables,
        )
        return f"{host}:29000", process

    def start_serving(self, *flags: str, **more: Any) -> tuple[str, ServerProcess]:
        """Does the same, and waits until the proxy serves."""
        address, process = self.start_proxy(*flags, **more)
        process.wait_for_line(PROXY_READY)
        return address, process
