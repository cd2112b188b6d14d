"""Stand-ins for Google's images, run as in a cluster; or the images."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import uuid
from typing import Any

from harness.processes import KIND, START_S, ServerProcess
from shared_pathways_service.testing.google_images import (
    PROXY_MODULE,
    SERVER_MODULE,
)
from tests.testing.google_images import container

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

    def place(self, port: int) -> tuple[str, int]:
        """Returns where one more server may listen, if its image listens on this port."""
        pid = os.getpid()
        return f"127.{next(_numbers)}.{pid >> 8 & 255}.{pid & 255 or 1}", port

    def start(self, module: str, *flags: str, host: str = "", **variables: str) -> ServerProcess:
        """Starts a stand-in on this address, or on one of its own."""
        env = {"SPS_BIND_ADDRESS": host or self.place(0)[0], **variables}
        process = ServerProcess(module, flags, env=env, tells_ready=False)
        return self._stack.enter_context(process)

    def start_manager(self, *flags: str, **variables: str) -> ServerProcess:
        """Starts a resource manager, and waits until it serves."""
        host, port = self.place(29001)
        process = self.start(
            SERVER_MODULE,
            f"--server_port={port}",
            "--node_type=resource_manager",
            "--instance_count=1",
            f"--instance_type={KIND}",
            "--enforce_kernel_ipv6_support=false",
            *flags,
            host=host,
            **variables,
        )
        process.wait_for_line(SERVER_READY.format(port), within_s=START_S)
        self.manager = f"{host}:{port}"
        return process

    def start_worker(self, **variables: str) -> ServerProcess:
        return self.start(
            SERVER_MODULE,
            "--server_port=29005",
            f"--resource_manager_address={self.manager}",
            "--gcs_scratch_location=gs://bucket",
            "--tpu_pinned_host_allocation_recycle=true",
            "--tpu_premapped_buffer_size=274877906944",
            "--enforce_kernel_ipv6_support=false",
            **{"MEGASCALE_SLICE_ID": "0", "TPU_TYPE": KIND, **variables},
        )

    def start_proxy(
        self, *flags: str, kind: str = KIND, insecure: str | None = "true", **variables: str
    ) -> tuple[str, ServerProcess]:
        """Returns the address of a proxy, and its process."""
        manager = [f"--resource_manager_address={self.manager}"] if self.manager else []
        host, port = self.place(29000)
        process = self.start(
            PROXY_MODULE,
            f"--server_port={port}",
            f"--virtual_slices={kind}",
            *manager,
            *flags,
            host=host,
            **({} if insecure is None else {VARIABLE: insecure}),
            **variables,
        )
        return f"{host}:{port}", process

    def start_serving(self, *flags: str, **more: Any) -> tuple[str, ServerProcess]:
        """Does the same, and waits until the proxy serves."""
        address, process = self.start_proxy(*flags, **more)
        process.wait_for_line(PROXY_READY, within_s=START_S)
        return address, process


class Containers(Cluster):
    """The images themselves, run by docker or podman on this machine's network.

    Args:
      stack: Ends the containers.
      images: ``REPOSITORY[:TAG]``, of which ``server`` and ``proxy_server`` are run.
    """

    def __init__(self, stack: contextlib.ExitStack, images: str) -> None:
        super().__init__(stack)
        self._repository, _, tag = images.partition(":")
        self._tag = tag or "latest"

    def place(self, port: int) -> tuple[str, int]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            return "127.0.0.1", free.getsockname()[1]

    def start(self, module: str, *flags: str, host: str = "", **variables: str) -> ServerProcess:
        name = f"sps-contract-{uuid.uuid4().hex[:12]}"
        self._stack.callback(container.remove, name)
        image = {PROXY_MODULE: "proxy_server", SERVER_MODULE: "server"}[module]
        settings = [f"{key}={value}" for key, value in variables.items()]
        words = [f"{self._repository}/{image}:{self._tag}", name, *settings, "--", *flags]
        process = ServerProcess(container.__name__, words, tells_ready=False)
        return self._stack.enter_context(process)

    def start_proxy(self, *flags: str, **more: Any) -> tuple[str, ServerProcess]:
        """Starts a resource manager first: images need one."""
        if not self.manager:
            self.start_manager()
        return super().start_proxy(*flags, **more)
