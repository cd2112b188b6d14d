"""Runs of MaxText, directly and through `sps run`, and their results."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from harness.host_kills import kill_host
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.testing.faults import EmbeddedSlices

__all__ = [
    "DECOUPLED",
    "DIRECT",
    "ELASTIC",
    "HOSTS",
    "MODEL",
    "SLICES",
    "Run",
    "clean_up",
    "compiled_programs",
    "elastic_run",
    "proxy_log",
    "train",
    "train_directly",
]

#: The smallest model that trains, on data that MaxText makes up. docs/maxtext.md shows the same.
MODEL: Final[Mapping[str, Any]] = {
    "dataset_type": "synthetic",
    "base_emb_dim": 64,
    "base_mlp_dim": 128,
    "base_num_query_heads": 4,
    "base_num_kv_heads": 4,
    "head_dim": 16,
    "base_num_decoder_layers": 2,
    "vocab_size": 256,
    "max_target_length": 32,
    "per_device_batch_size": 1,
    "dtype": "float32",
    "weight_dtype": "float32",
    "attention": "dot_product",
    "enable_goodput_recording": "false",
    "enable_tensorboard": "false",
}
#: In one process on eight devices of this machine's CPU, cut as two slices of four chips are.
DIRECT: Final = {
    **MODEL,
    "hardware": "cpu",
    "skip_jax_distributed_system": "true",
    "ici_data_parallelism": 2,
    "ici_fsdp_parallelism": 4,
}
SLICES: Final = {
    **MODEL,
    "enable_single_controller": "true",
    "dcn_data_parallelism": 2,
    "ici_fsdp_parallelism": 4,
}
#: On slices of two hosts with four chips each: parameters are sharded over the hosts.
HOSTS: Final = {**SLICES, "ici_fsdp_parallelism": 8}
ELASTIC: Final = {
    **SLICES,
    "dcn_data_parallelism": -1,
    "elastic_enabled": "true",
    "elastic_min_slice_count": 1,
}
#: Keeps MaxText from looking for Google Cloud.
DECOUPLED: Final = {"DECOUPLE_GCLOUD": "TRUE"}

_SPS: Final = (sys.executable, "-m", "shared_pathways_service.cli")
#: The direct run's processes, as MaxText's launcher tells each; the coordinator's port is 1234.
_COORDINATOR: Final = {"JAX_COORDINATOR_ADDRESS": "127.0.0.1", "JOB_INDEX": "0"}
_OF_ONE_PROCESS: Final = "skip_jax_distributed_system"
_TRAIN: Final = (sys.executable, "-m", "maxtext.trainers.pre_train.train")
_CLEAN_UP: Final = (
    "import sys; from absl import logging; from maxtext.utils import elastic_utils;"
    " logging.set_verbosity(logging.INFO); elastic_utils.clean_up_checkpoints(sys.argv[1])"
)
_TOKENS: Final = "learning/total_weights"
#: Seconds; generous, as a busy machine compiles for minutes.
_RUN_S: Final = 1800.0
_EVENT_S: Final = 900.0
_LOOK_S: Final = 0.1
#: For a run to end after a stop signal.
_END_S: Final = 60.0
#: The slice that is lost, after the second checkpoint and this number of steps.
_LOST_SLICE: Final = 1
_STEPS_BEYOND: Final = 5
_SAVED: Final = "Finished saving checkpoint"


@dataclasses.dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
      scratch: A directory for all that is written.
      name: Of the run and of its connection.
      options: MaxText's, without those of directories.
      output: Where checkpoints go; None: below `scratch`.
      slices: What it asks the service for.
      process: Its index, if a run has several; the first one's metrics count.
    """

    scratch: Path
    name: str
    options: Mapping[str, Any]
    output: str | None = None
    slices: str = "tpuv6e:2x2=2"
    process: int = 0

    @property
    def log(self) -> Path:
        """What MaxText and JAX print."""
        return self.scratch / f"{self._own_name}.log"

    @property
    def dumps(self) -> Path:
        """Where MaxText asks XLA to write dumps."""
        return self.scratch / f"{self._own_name}-dumps"

    @property
    def arguments(self) -> list[str]:
        """MaxText's command line."""
        files = {
            "run_name": self.name,
            "base_output_directory": self.output or self.scratch / "output",
            "metrics_file": self._metrics,
            "dump_hlo_local_dir": self.dumps,
        }
        return [f"{key}={value}" for key, value in {**files, **self.options}.items()]

    @property
    def _metrics(self) -> Path:
        return self.scratch / f"{self._own_name}.jsonl"

    @property
    def _own_name(self) -> str:
        return f"{self.name}-{self.process}" if self.process else self.name

    def metrics(self) -> list[dict[str, Any]]:
        """Returns MaxText's metrics of the steps so far, in the order in which they were done."""
        if not self._metrics.exists():
            return []
        # (The last line may not be complete yet.)
        lines = self._metrics.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def devices(self) -> list[int]:
        """Returns how many devices each step was done on: each has one sequence of a batch."""
        tokens = int(self.options["max_target_length"]) * int(self.options["per_device_batch_size"])
        return [int(metrics[_TOKENS]) // tokens for metrics in self.metrics()]

    def phases(self) -> list[dict[str, int]]:
        """Returns the steps that were done one after the other on the same devices."""
        found: list[dict[str, int]] = []
        for metrics, devices in zip(self.metrics(), self.devices(), strict=True):
            step = int(metrics["step"])
            if found and found[-1]["devices"] == devices and found[-1]["last"] == step - 1:
                found[-1] |= {"last": step, "steps": found[-1]["steps"] + 1}
            else:
                found.append({"devices": devices, "first": step, "last": step, "steps": 1})
        return found

    def checkpoints(self) -> list[int]:
        """Returns the steps of complete checkpoints in a local directory."""
        saved = (self.scratch / "output" / self.name / "checkpoints").glob("*/_CHECKPOINT_METADATA")
        return sorted(int(path.parent.name) for path in saved)


@contextlib.contextmanager
def _running(
    run: Run, environment: Mapping[str, str], *, through_sps: bool
) -> Iterator[subprocess.Popen[bytes]]:
    command = [*_TRAIN, *run.arguments]
    if through_sps:
        slices = ("--slices", run.slices, "--proxy-job-name", run.name)
        command = [*_SPS, "run", *slices, "--", *command]
    with run.log.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=run.scratch,
            env=_environment(environment),
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_END_S)


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    left_out = ("XLA_FLAGS", "JAX_PLATFORMS", *DECOUPLED)
    return {**{k: v for k, v in os.environ.items() if k not in left_out}, **own}


def _finish(run: Run, process: subprocess.Popen[bytes]) -> None:
    if process.wait(_RUN_S) != 0:
        end = "\n".join(run.log.read_text(errors="replace").splitlines()[-60:])
        raise RuntimeError(f"{run.name} ended with {process.returncode}:\n{end}")


def train(run: Run, environment: Mapping[str, str]) -> None:
    """Trains through `sps run` to the end.

    Raises:
      RuntimeError: MaxText failed; with the end of its log.
    """
    print(f"== {run.name}", flush=True)
    with _running(run, environment, through_sps=True) as process:
        _finish(run, process)


def train_directly(run: Run, devices: int, processes: int) -> None:
    """Trains on this machine's CPU to the end, with JAX alone.

    Args:
      run: Its options are those of one process.
      devices: All together.
      processes: More than one share the devices, as multi-controller JAX.

    Raises:
      RuntimeError: MaxText failed; with the end of its log.
    """
    print(f"== {run.name}", flush=True)
    own = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices // processes}",
        **DECOUPLED,
    }
    options = {**run.options}
    if processes > 1:
        options.pop(_OF_ONE_PROCESS)
        count = str(processes)
        own |= {**_COORDINATOR, "PROCESSES_IN_JOB": count, "JAX_PROCESS_COUNT": count}
    runs = [dataclasses.replace(run, options=options, process=index) for index in range(processes)]
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(
                _running(one, {**own, "JOB_COMPLETION_INDEX": str(one.process)}, through_sps=False)
            )
            for one in runs
        ]
        for one, process in zip(runs, started, strict=True):
            _finish(one, process)


def elastic_run(
    run: Run, environment: Mapping[str, str], *, on_executors: bool = False
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Trains to the end while a slice is lost and returns.

    Args:
      run: The training.
      environment: Of MaxText.
      on_executors: The slice is lost by a kill of its host from outside.

    Returns:
      Seconds from the loss to the next step, and from the slice's start to the next step on both;
      and the modules of the processes that were killed from outside.
    """
    killed: tuple[str, ...] = ()
    print(f"== {run.name}", flush=True)
    with _running(run, environment, through_sps=True) as process:

        def wait_until(reached: Callable[[], bool], what: str) -> float:
            began = time.monotonic()
            while not reached():
                if process.poll() is not None:
                    _finish(run, process)
                    raise RuntimeError(f"{run.name} ended before a {what}: {run.phases()}")
                if time.monotonic() - began > _EVENT_S:
                    raise RuntimeError(
                        f"{run.name}: no {what} within {_EVENT_S:g} s: {run.phases()}"
                    )
                time.sleep(_LOOK_S)
            return round(time.monotonic() - began, 1)

        def is_saved() -> bool:
            # (What MaxText does to a checkpoint that is still being written is not shown here.)
            steps = int(run.options["checkpoint_period"]) + _STEPS_BEYOND
            saved = run.log.read_text(errors="replace").count(_SAVED)
            return saved >= 2 and len(run.metrics()) > steps

        wait_until(is_saved, "checkpoint on both slices")
        before = run.devices()[-1]
        with EmbeddedSlices(run.name) as slices:
            if on_executors:
                killed = kill_host(_LOST_SLICE)
            # The service starts no other workers meanwhile.
            slices.kill(_LOST_SLICE, _EVENT_S)
            lost = wait_until(lambda: run.devices()[-1] < before, "step on one slice")
            slices.revive(_LOST_SLICE)
            back = wait_until(lambda: run.devices()[-1] == before, "step on both slices again")
        _finish(run, process)
    return {"loss_to_next_step_s": lost, "slice_back_to_next_step_s": back}, killed


def clean_up(directory: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Calls MaxText's callback of elastic events; returns its output on standard error."""
    return subprocess.run(
        [sys.executable, "-c", _CLEAN_UP, directory],
        capture_output=True,
        text=True,
        env=_environment({"JAX_PLATFORMS": "cpu", **environment}),
        timeout=_EVENT_S,
        check=False,
    )


def proxy_log(name: str) -> str:
    """Returns the log lines of the proxies of a connection."""
    logs = Settings.load().state_dir.glob(f"logs/*/proxy-{name}.log")
    return "".join(log.read_text(errors="replace") for log in logs)


def compiled_programs() -> int:
    """Returns how many compiled programs the service keeps for later sessions."""
    return len(list((Settings.load().cache_dir / "compiled").glob("*.xla")))
