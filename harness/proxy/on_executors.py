"""A pytest plug-in that has proxies compute on executors, to run the tests of proxies once more.

    pytest -p harness.proxy.on_executors tests/servers/proxy/session

Engines of this process and proxies as processes get an executor for each host of their slices.
Tests in `on_executors.toml` are expected to fail, for the reason that is given there; the run fails
if one of them passes. Those with `run = false` are not run: they would wait for minutes, or leave
something behind. Engines that have executors or a cache of compiled programs, and proxies with a
resource manager or with a choice of the engine, stay as they are.
"""

from __future__ import annotations

import fnmatch
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import processes
from harness.proxy.forks import Forks
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.servers.proxy.engine.engine import Engine
from shared_pathways_service.servers.proxy.executors.executors import Executors, hosts_of

_PROXY = "shared_pathways_service.servers.proxy"
_SLICES = "--virtual_slices="
_RUNS_PYTHON = "--colocated_python"
_LEFT_ALONE = ("--engine=", "--resource_manager_address=", "--compile_cache_dir=", "--ffi_targets=")
_TOKEN = "a-token"
_token_file = tempfile.NamedTemporaryFile("w")  # noqa: SIM115 - of the whole run
_token_file.write(_TOKEN)
_token_file.flush()
_forks = Forks("harness.proxy.executor_forks")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests whose failures are explained."""
    known = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["difference"]
    for item in items:
        for difference in known:
            if any(fnmatch.fnmatchcase(item.nodeid, pattern) for pattern in difference["tests"]):
                item.add_marker(
                    pytest.mark.xfail(
                        reason=difference["reason"],
                        strict=True,
                        run=difference.get("run", True),
                    )
                )


def pytest_configure() -> None:
    make_engine = Engine.__init__
    make_process = processes.ServerProcess.__init__

    def engine(self: Engine, slices: Sequence[InstanceType], *rest: Any, **named: Any) -> None:
        has_cache = len(rest) > 2 and rest[2] is not None
        has_executors = named.get("executors") or named.get("placed_executors")
        if not has_cache and not has_executors:
            runs_python = bool(named.get("runs_python"))
            named["executors"] = Executors(
                _addresses(slices, runs_python=runs_python),
                hosts_of(slices, with_cpus=runs_python),
                _TOKEN,
            )
        make_engine(self, slices, *rest, **named)
        self.open_executors()

    def process(self: Any, module: str, flags: Sequence[str], **named: Any) -> None:
        make_process(self, module, [*flags, *_more_flags(module, flags)], **named)

    Engine.__init__ = engine  # type: ignore[assignment, method-assign]
    processes.ServerProcess.__init__ = process  # type: ignore[method-assign]


def pytest_unconfigure() -> None:
    # (Executors that are left end with it.)
    _forks.close()
    _token_file.close()


def _more_flags(module: str, flags: Sequence[str]) -> list[str]:
    slices = [flag.removeprefix(_SLICES) for flag in flags if flag.startswith(_SLICES)]
    if module != _PROXY or not slices or any(flag.startswith(_LEFT_ALONE) for flag in flags):
        return []
    types = [InstanceType.parse(name) for name in slices[-1].split(",")]
    return [
        "--engine=distributed",
        f"--executors={','.join(_addresses(types, runs_python=_RUNS_PYTHON in flags))}",
        f"--executor_token_file={_token_file.name}",
    ]


def _addresses(instance_types: Sequence[InstanceType], *, runs_python: bool) -> list[str]:
    """Starts an executor for each host; returns where they serve."""
    more = [_RUNS_PYTHON] if runs_python else []
    return [
        f"127.0.0.1:{_port_of_a_new_one(instance_type, host, *more)}"
        for instance_type in instance_types
        for host in range(instance_type.hosts)
    ]


def _port_of_a_new_one(instance_type: InstanceType, host: int, *more: str) -> int:
    return _forks.port(
        f"--instance_type={instance_type}",
        f"--host_index={host}",
        f"--token_file={_token_file.name}",
        *more,
    )
