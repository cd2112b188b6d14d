"""Upstream's scripts as modules of this package, by flags in absl's syntax."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness.deadlines import deadline
from harness.upstream import calls_of, service_file
from shared_pathways_service.cli import command
from shared_pathways_service.cli.absl_flags import sps_words

ROOT = Path(__file__).parents[2]


def module(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"shared_pathways_service.{name}", *arguments],
        capture_output=True,
        text=True,
        timeout=deadline(60.0),
        check=False,
        cwd=ROOT,
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--tpu_count", "2"], ["--tpu-count=2"]),
        (["-tpu_count=2", "-cluster", "c"], ["--tpu-count=2", "--cluster=c"]),
        # A value may look like a flag, be empty, or have an equals sign.
        (["--command", "--version"], ["--command=--version"]),
        (["--command=a --b=c", "--region="], ["--command=a --b=c", "--region="]),
        (["--collect_service_metrics", "--region=r"], ["--collect-service-metrics", "--region=r"]),
        (["-collect_service_metrics=T"], ["--collect-service-metrics"]),
        (["--nocollect_service_metrics"], ["--no-collect-service-metrics"]),
        (["--collect_service_metrics=false"], ["--no-collect-service-metrics"]),
        (["--nocollect_service_metrics=0"], ["--collect-service-metrics"]),
        # The first argument that is no flag ends them.
        (["--tpu_count=1", "python", "-m", "--region", "x"], ["--tpu-count=1", "python", "-m"]),
        (["--tpu_count=1", "--", "--region", "x"], ["--tpu-count=1", "--", "--region"]),
        # The parser refuses these.
        (["--collect_service_metrics=maybe"], ["--collect_service_metrics=maybe"]),
        (
            ["--nonsense=1", "--nocluster", "--region"],
            ["--nonsense=1", "--nocluster", "--region"],
        ),
    ],
)
def test_flags_are_read_as_absl_reads_them(given: list[str], expected: list[str]) -> None:
    assert sps_words("run", given)[: len(expected)] == expected


def test_a_flag_without_a_negative_form_is_left_out() -> None:
    assert sps_words("deploy", ["--nodry_run", "--dry_run=False", "--dry_run"]) == ["--dry-run"]


def test_a_service_with_upstreams_defaults() -> None:
    done = module("deploy_pathways_service", "--dry_run")
    assert (done.returncode, done.stderr) == (0, "")
    jobset = yaml.safe_load(done.stdout)
    assert jobset["metadata"]["name"] == "pathways-service"
    assert jobset["spec"]["failurePolicy"]["maxRestarts"] == 30
    head, workers = jobset["spec"]["replicatedJobs"]
    [manager] = head["template"]["spec"]["template"]["spec"]["containers"]
    assert {"--instance_type=tpuv6e:2x2", "--instance_count=2"} <= set(manager["args"])
    assert workers["replicas"] == 2
    # Neither upstream's bucket, which is not the user's, nor its image of JAX 0.9.0.
    assert not [word for word in manager["args"] if "gcs" in word]
    assert manager["image"].endswith(":latest")


def test_defaults_give_way_to_slices_and_a_name_in_this_projects_form() -> None:
    done = module("deploy_pathways_service", "--slices=tpuv6e:4x4=1", "--dry_run", "mine")
    assert (done.returncode, done.stderr) == (0, "")
    jobset = yaml.safe_load(done.stdout)
    assert jobset["metadata"]["name"] == "mine"
    head, _ = jobset["spec"]["replicatedJobs"]
    [manager] = head["template"]["spec"]["template"]["spec"]["containers"]
    assert {"--instance_type=tpuv6e:4x4", "--instance_count=1"} <= set(manager["args"])


@pytest.mark.parametrize(
    ("script", "name"), [("run_workload", "run"), ("deploy_pathways_service", "deploy")]
)
def test_every_flag_of_upstream_is_an_option(script: str, name: str) -> None:
    defined = calls_of(service_file(f"{script}.py"), "flags.DEFINE_")
    flags = {ast.literal_eval(call.args[0]) for call in defined}
    assert len(flags) == {"run": 11, "deploy": 10}[name]
    options = {option for param in command(name).params for option in param.opts}
    known = {option.lstrip("-").replace("-", "_") for option in options}
    assert flags <= known


def test_a_workload_needs_its_command_alone() -> None:
    required = [param.name for param in command("run").params if param.required]
    assert required == []
    # What is refused is the program, which is looked for before anything is started.
    done = module("run_workload", "--command", "no-such-program --version")
    assert (done.returncode, done.stdout) == (127, "")
    assert "no-such-program: command not found" in done.stderr


def test_what_is_wrong_is_refused_by_name() -> None:
    for name, arguments, said in (
        ("deploy_pathways_service", ("-tpu_type", "v3"), "--tpu-type='v3'"),
        ("deploy_pathways_service", ("-topology=2y2",), "--topology='2y2'"),
        ("deploy_pathways_service", ("--max_restarts=-1",), "max-restarts"),
        ("deploy_pathways_service", ("--jax_version=0.9.0", "--server_image=r.io/s:1"), "either"),
        ("deploy_pathways_service", ("--nonsense=1",), "--nonsense"),
        ("deploy_pathways_service", ("--dry_run=maybe",), "does not take a value"),
        ("run_workload", ("--tpu_count=x", "--command=true"), "--tpu-count"),
        ("run_workload", ("--command",), "requires an argument"),
        ("run_workload", (), "COMMAND"),
    ):
        done = module(name, *arguments)
        assert (done.returncode, done.stdout) == (2, ""), (arguments, done.stderr)
        assert said in done.stderr, arguments
