"""The devices of a machine, divided among the workers of the embedded service."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.flags.supervisor import SupervisorOptions
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.servers.supervisor.command_lines import hosts_of, worker_command
from shared_pathways_service.servers.worker.flags import WorkerOptions
from tests.servers.supervisor.support import embedded


def test_each_worker_has_gpus_of_its_own() -> None:
    options = SupervisorOptions(
        engine="distributed",
        platform="cuda",
        slices=(("tpuv6e:2x4", 1), ("tpuv6e:1x1", 2)),
        spares=0,
    )
    commands = [worker_command(RuntimePaths(Path("/r")), options, h, 1) for h in hosts_of(options)]
    workers = [parse_flags(WorkerOptions, command[4:], {}) for command in commands]
    assert [worker.platform for worker in workers] == ["cuda"] * 4
    assert [worker.first_device for worker in workers] == [0, 4, 8, 9]


def test_tpus_of_a_machine_have_one_worker() -> None:
    one = (("tpuv6e:2x2", 1),)
    SupervisorOptions(engine="distributed", platform="tpu", slices=one, spares=0)
    for fields in ({"engine": "distributed"}, {"spares": 0}):
        with pytest.raises(InvalidRequestError) as caught:
            SupervisorOptions(platform="tpu", slices=one, **fields)
        assert (caught.value.field, caught.value.value) == ("--platform", "tpu")


@pytest.mark.parametrize(
    "arguments", [[], ["--engine=distributed", "--platform=cuda"], ["--platform=cuda"]]
)
def test_colocated_python_is_not_allowed_where_nothing_runs_it(arguments: list[str]) -> None:
    """Nor for a service that connect() starts, which leaves the variable in its environment."""
    with pytest.raises(InvalidRequestError, match="SPS_ALLOW_COLOCATED_PYTHON") as caught:
        parse_flags(SupervisorOptions, arguments, {"SPS_ALLOW_COLOCATED_PYTHON": "true"})
    assert caught.value.field == "--allow-colocated-python"


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_only_workers_on_tpus_have_libtpus_variables(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_libtpu = {"TPU_VISIBLE_CHIPS": "0,1,2,3", "LIBTPU_INIT_ARGS": "--xla_a=1"}
    for name, value in of_libtpu.items():
        monkeypatch.setenv(name, value)
    with embedded("--engine=distributed", f"--platform={platform}") as (_, client):
        [worker], [manager] = client.processes("worker"), client.processes("rm")
        environs = [psutil.Process(found.pid).environ() for found in (worker, manager)]
    passed, others = (environ.items() & of_libtpu.items() for environ in environs)
    assert dict(passed) == (of_libtpu if platform == "tpu" else {})
    assert not others
