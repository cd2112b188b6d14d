"""docs/maxtext.md shows the commands that scripts/maxtext runs, whose waits come to an end."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from conformance import maxtext, maxtext_runs
from conformance.maxtext_runs import (
    DIRECT,
    ELASTIC,
    HOSTS,
    MODEL,
    SLICES,
    Run,
    elastic_run,
    train_directly,
)
from shared_pathways_service.api.faulty_jax import FAULTY_RELEASES
from tests.docs.blocks import DOCS, ROOT, blocks_of

_PAGE = DOCS / "maxtext.md"
#: Of one run only; the script has its own.
_OF_A_RUN = {"run_name", "base_output_directory", "steps", "checkpoint_period"}


def _options(text: str) -> dict[str, str]:
    return dict(re.findall(r"\b([a-z_]+)=(\S+)", text))


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in options.items()}


def test_the_page_trains_with_the_options_of_the_script() -> None:
    (command,) = [b.text for b in blocks_of(_PAGE) if "maxtext.trainers" in b.text]
    shown = _options(command.partition(" -- ")[2])
    assert {k: v for k, v in shown.items() if k not in _OF_A_RUN} == _texts(SLICES)


def test_the_page_names_what_other_runs_change() -> None:
    direct, elastic, hosts = (_options(b.text) for b in blocks_of(_PAGE) if b.language == "text")
    assert {**_texts(MODEL), **direct} == _texts(DIRECT)
    assert {**_texts(SLICES), "dcn_data_parallelism": "-1", **elastic} == _texts(ELASTIC)
    assert {**_texts(SLICES), **hosts} == _texts(HOSTS)


def test_the_page_installs_the_release_of_the_script() -> None:
    script = (ROOT / "scripts" / "maxtext").read_text()
    release, jax, flax = re.findall(r"^(?:release|jax|flax)=(\S+)", script, re.MULTILINE)
    installed = f"'maxtext[tpu]=={release}' jax=={jax} jaxlib=={jax} flax=={flax}\n"
    assert installed in _PAGE.read_text()
    assert jax not in FAULTY_RELEASES


def _kept(name: str) -> dict[str, Any]:
    text = (ROOT / "conformance" / "results" / f"{name}.json").read_text()
    result: dict[str, Any] = json.loads(text)["result"]
    return result


@pytest.mark.parametrize("engine", [maxtext.LOCAL, maxtext.DISTRIBUTED])
def test_the_kept_results_have_all_parts_and_passed(engine: str) -> None:
    result = _kept("maxtext" if engine == maxtext.LOCAL else f"maxtext_{engine}")
    assert result.keys() == {"versions", "checks", *maxtext.PARTS[engine]}
    assert set(result["checks"].values()) == {True}
    assert result["versions"]["jaxlib"] not in FAULTY_RELEASES


def test_the_losses_of_the_engines_differ_in_the_last_digits_only() -> None:
    local, distributed = (_kept(name)["slices"] for name in ("maxtext", "maxtext_distributed"))
    assert distributed["losses"] == pytest.approx(local["losses"], rel=2e-7)


def test_a_part_of_another_engine_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["maxtext", "--engine=distributed", "--only=bucket"])
    with pytest.raises(SystemExit) as ended:
        maxtext.main()
    assert ended.value.code == 2
    assert "--only=bucket is no part with --engine=distributed: it has slices, hosts, elastic" in (
        capsys.readouterr().err
    )


#: Writes what it was told as the metrics of a step.
_TOLD = """
import json, os, sys
options = dict(word.split("=", 1) for word in sys.argv[1:])
names = ("JOB_COMPLETION_INDEX", "JAX_PROCESS_COUNT", "XLA_FLAGS")
with open(options["metrics_file"], "w") as file:
    told = {name: os.environ.get(name) for name in names}
    print(json.dumps({**told, "one": "skip_jax_distributed_system" in options}), file=file)
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_direct_run_divides_its_devices_among_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    monkeypatch.setattr(maxtext_runs, "_TRAIN", (sys.executable, "-S", "-c", _TOLD))
    train_directly(Run(tmp_path, "direct", DIRECT), 8, processes)
    several = processes > 1
    told = {
        "JAX_PROCESS_COUNT": str(processes) if several else None,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={8 // processes}",
        "one": not several,
    }
    for index in range(processes):
        [metrics] = Run(tmp_path, "direct", DIRECT, process=index).metrics()
        assert metrics == {**told, "JOB_COMPLETION_INDEX": str(index)}


def test_a_direct_run_that_fails_names_itself_and_ends_its_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "import os, time\n"
        "if os.environ['JOB_COMPLETION_INDEX'] == '0': raise SystemExit('no port')\n"
        "time.sleep(100)"
    )
    monkeypatch.setattr(maxtext_runs, "_TRAIN", (sys.executable, "-S", "-c", source))
    with pytest.raises(RuntimeError, match="direct ended with 1:\nno port"):
        train_directly(Run(tmp_path, "direct", DIRECT), 8, 2)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "elastic ended before a checkpoint on both slices"),
        ("raise SystemExit('no slices')", "elastic ended with 1:\nno slices"),
        (
            # It does not end when it is told to, either.
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(100)",
            "elastic: no checkpoint on both slices within 0.5 s",
        ),
    ],
)
def test_a_run_that_saves_no_checkpoint_is_not_waited_for_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    monkeypatch.setattr(maxtext_runs, "_SPS", (sys.executable, "-S", "-c", source))
    monkeypatch.setattr(maxtext_runs, "_END_S", 1.0)
    if "within" in message:
        monkeypatch.setattr(maxtext_runs, "_EVENT_S", 0.5)
    run = Run(tmp_path, "elastic", {**ELASTIC, "checkpoint_period": 1})
    with pytest.raises(RuntimeError, match=message):
        elastic_run(run, {})
