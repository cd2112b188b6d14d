"""Proxies for tests: in this process, their slices placed and lost by hand, and as processes."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import deadlines
from harness.processes import ServerProcess
from harness.proxy.raw import RawClient
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.servers.proxy.engine.compile_cache import CompileCache
from shared_pathways_service.servers.proxy.engine.engine import Engine
from shared_pathways_service.servers.proxy.executors.placed_executors import PlacedExecutors
from shared_pathways_service.servers.proxy.session.service import ProxyService
from shared_pathways_service.servers.proxy.transport.grpc_transport import GrpcTransport

KIND = "tpuv6e:2x2"
MODULE = "shared_pathways_service.servers.proxy"


class LocalProxy:
    """A proxy in this process, with two slices of four devices."""

    def __init__(
        self,
        socket: Path,
        *,
        memory_limit: int = 0,
        xla_flags: Sequence[tuple[str, str]] = (),
        compile_cache: CompileCache | None = None,
        transport: str = "core",
        places_executors: bool = False,
        runs_python: bool = False,
        **service: Any,
    ) -> None:
        slices = [InstanceType.parse(KIND)] * 2
        placed = PlacedExecutors(slices, with_cpus=runs_python) if places_executors else None
        self.engine = Engine(
            slices,
            memory_limit,
            xla_flags,
            compile_cache,
            placed_executors=placed,
            runs_python=runs_python,
        )
        self.slices = self.engine.slices
        for index in range(2):
            self.slices.place(index, index + 1, f"slice-{index}")
        self.service = ProxyService(self.engine, **service)
        self.transport = GrpcTransport(self.service, transport)
        listening = self.transport.start(
            server_port=None, server_socket=str(socket), default_port=0, bind_address=""
        )
        self.address = listening.address

    def lose(self, index: int, reason: str = "worker 0 is gone") -> None:
        generation = self.slices.current()[index].generation
        assert generation is not None
        assert self.slices.unplace(index, generation, reason)

    def close(self) -> None:
        self.transport.stop()
        self.engine.close()


MakeProxy = Callable[..., LocalProxy]
MakeClient = Callable[..., RawClient]
StartProxy = Callable[..., ServerProcess]


@pytest.fixture
def transport() -> str:
    """How `make_proxy` has its proxies served; a module may override it."""
    return "core"


@pytest.fixture
def make_proxy(own_directories: Path, transport: str) -> Iterator[MakeProxy]:
    """Makes proxies in this process; they end with the test."""
    with contextlib.ExitStack() as stack:

        def make(**arguments: Any) -> LocalProxy:
            socket = Path(tempfile.mkdtemp(prefix="p", dir=own_directories)) / "s"
            proxy = LocalProxy(socket, **{"transport": transport, **arguments})
            stack.callback(proxy.close)
            return proxy

        yield make


@pytest.fixture
def proxy(make_proxy: MakeProxy) -> LocalProxy:
    """A proxy in this process, both slices placed."""
    return make_proxy()


@pytest.fixture
def connect() -> Iterator[MakeClient]:
    """Opens sessions; they end with the test."""
    with contextlib.ExitStack() as stack:

        def make(address: str, **arguments: Any) -> RawClient:
            return stack.enter_context(RawClient(address, **arguments))

        yield make


@pytest.fixture
def client(proxy: LocalProxy, connect: MakeClient) -> RawClient:
    """A session with `proxy`."""
    return connect(proxy.address)


@pytest.fixture
def start_proxy(own_directories: Path) -> Iterator[StartProxy]:
    """Starts proxies as processes; they end with the test."""
    with contextlib.ExitStack() as stack:

        def start(*flags: str, slices: str = f"{KIND},{KIND}", **kwargs: Any) -> ServerProcess:
            socket = Path(tempfile.mkdtemp(prefix="p", dir=own_directories)) / "s"
            all_flags = [f"--server_socket={socket}", f"--virtual_slices={slices}", *flags]
            return stack.enter_context(ServerProcess(MODULE, all_flags, **kwargs))

        yield start


def wait_until(condition: Callable[[], bool]) -> None:
    deadlines.wait_until("what the test needs", condition)
