"""Kept results: their provenance, their digests, and what `scripts/check` refuses."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness import history, results
from harness.deadlines import deadline
from harness.processor_time import Watch

_ROOT = Path(__file__).resolve().parents[2]
#: In a program whose exit code is that of its `main`.
_RETURNS = re.compile(r"sys\.exit\(\s*main\w*\(")
#: Uses a processor for some time, in a process whose parent ended.
_ORPHAN = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time\\nwhile time.process_time() < 1: pass"])
import time
time.sleep(1.5)
"""


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Returns a result as a benchmark writes it, where results are kept."""
    path = tmp_path / "benchmarks" / "results" / "own.json"
    with results.measured():
        results.write_result("own", {"ms": 1.5}, path, {"ms": [1.0, 2.0, 1.5]})
    return path


def errors(root: Path, **before: str) -> list[str]:
    """Returns what is wrong with kept results, with those that were kept before."""
    known = root / "kept_before.toml"
    lines = [f'"{name}" = "{digest}"' for name, digest in before.items()]
    known.write_text("\n".join(lines).replace("own", "benchmarks/results/own.json"))
    return list(results.errors(root, known))


def test_a_result_has_its_provenance(kept: Path) -> None:
    provenance = json.loads(kept.read_text())["provenance"]
    assert provenance["commit"] == history.head()
    assert provenance["versions"].keys() == {"python", "jax", "jaxlib", "grpcio"}
    assert provenance["cpu"]
    assert provenance["load_at_start"] >= 0
    assert 0 <= provenance["others_cpu"] <= 1
    assert (provenance["rounds"], provenance["spread"]) == (3, {"ms": 0.667})


def test_a_result_that_its_tool_wrote_is_accepted(kept: Path, tmp_path: Path) -> None:
    assert errors(tmp_path) == []


def edit(path: Path, change: Any) -> None:
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [("result", "ms", 1.4), ("provenance", "date", "2026-11-21"), ("provenance", "rounds", 30)],
)
def test_an_edited_result_is_refused(
    kept: Path, tmp_path: Path, part: str, name: str, value: object
) -> None:
    edit(kept, lambda record: record[part].update({name: value}))
    [line] = errors(tmp_path)
    assert line.startswith("benchmarks/results/own.json is not what its tool wrote (digest)")


def test_a_result_without_provenance_must_be_known(kept: Path, tmp_path: Path) -> None:
    edit(kept, lambda record: record.pop("provenance"))
    [line] = errors(tmp_path)
    assert line.startswith("benchmarks/results/own.json has no provenance")
    digest = results.digest(json.loads(kept.read_text()))
    assert errors(tmp_path, own=digest) == []
    edit(kept, lambda record: record["result"].update(ms=1.4))
    assert "was changed since it was kept" in errors(tmp_path, own=digest)[0]


def test_the_list_of_results_without_provenance_only_shrinks(kept: Path, tmp_path: Path) -> None:
    assert errors(tmp_path, own="0") == [
        "benchmarks/results/own.json has its provenance: remove it from kept_before.toml"
    ]
    kept.unlink()
    assert errors(tmp_path, own="0") == [
        "benchmarks/results/own.json is gone: remove it from kept_before.toml"
    ]


def test_rows_of_an_earlier_run_keep_its_provenance(kept: Path, tmp_path: Path) -> None:
    earlier = json.loads(kept.read_text())
    edit(kept, lambda record: record["provenance"].update(date="2026-11-21"))
    for _ in range(2):
        with results.measured():
            both = json.loads(kept.read_text())
            results.write_result("own", {"ms": 1.5, "s": 2}, kept, earlier=both)
            # (The file is written more than once in a run.)
            both = json.loads(kept.read_text())
            results.write_result("own", {"ms": 1.5, "s": 2}, kept, earlier=both)
        time.sleep(1.1)
    continues = json.loads(kept.read_text())["provenance"]["continues"]
    assert [of["digest"] for of in continues][:1] == [earlier["provenance"]["digest"]]
    assert len(continues) == 2
    assert errors(tmp_path) == []


def test_a_figure_that_misses_its_limit_fails_its_benchmark(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert results.exit_code([]) == 0
    assert results.exit_code(name for name in ("small_program_after",)) == 1
    assert capsys.readouterr().err == "missed its limit: small_program_after\n"


def texts(*folders: str) -> dict[str, str]:
    """Returns the modules of folders of the repository, by path."""
    return {
        str(path.relative_to(_ROOT)): path.read_text()
        for folder in folders
        for path in (_ROOT / folder).rglob("*.py")
    }


def test_each_benchmark_with_a_limit_can_fail() -> None:
    with_limits = {
        path: text
        for path, text in texts("benchmarks").items()
        if "write_result(" in text and re.search(r"\b(wanted|aim|limit)\b", text, re.IGNORECASE)
    }
    assert len(with_limits) > 9
    assert [path for path, text in with_limits.items() if "exit_code(" not in text] == []
    assert [path for path, text in with_limits.items() if not _RETURNS.search(text)] == []


def test_each_stress_program_can_fail() -> None:
    modules = texts("stress")
    keep = {path: text for path, text in modules.items() if "write_result(" in text}
    assert len(keep) > 9
    assert [path for path, text in keep.items() if "exit_code(" not in text] == []
    programs = {
        path: text
        for path, text in modules.items()
        if '"__main__"' in text and re.search(r"(?:write_result|main_apart)\(", text)
    }
    assert len(programs) > 11
    assert [path for path, text in programs.items() if not _RETURNS.search(text)] == []


def test_each_program_keeps_the_rounds_and_the_spread_of_its_figures() -> None:
    without = set()
    for path, text in texts("benchmarks", "stress").items():
        for call in ast.walk(ast.parse(text)):
            if not isinstance(call, ast.Call) or getattr(call.func, "id", "") != "write_result":
                continue
            if len(call.args) < 4 and not any(each.arg == "repeats" for each in call.keywords):
                without.add(path)
    assert without == {
        # Each fault is committed once, for minutes.
        "stress/link_faults.py",
        # They have findings and counts, but no figure that they measure repeatedly.
        "stress/fuzz/__main__.py",
        "stress/jaxlib_entries/__main__.py",
        "stress/shared_home/__main__.py",
    }


def test_figures_without_values_have_no_rounds() -> None:
    with results.measuring() as measurement:
        repeats = {"s": [1.0, 3.0, 2.0], "ms": [1.5, 1.0], "none": []}
        provenance = results.stamped({}, measurement, repeats)["provenance"]
        assert results.stamped({}, measurement, {"none": []})["provenance"]["rounds"] == 1
    assert (provenance["rounds"], provenance["spread"]) == (2, {"s": 1.0, "ms": 0.4})


def test_a_checkout_that_moves_on_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "head", lambda: "a" * 40)
    monkeypatch.setattr(history, "is_changed", lambda: False)
    with results.measuring() as measurement:
        assert results.stamped({}, measurement)["provenance"]["changed"] is False
        monkeypatch.setattr(history, "head", lambda: "b" * 40)
        provenance = results.stamped({}, measurement)["provenance"]
    assert provenance["commit"] == "a" * 40
    assert provenance["changed"] is True


def test_each_part_of_a_suite_is_checked(tmp_path: Path) -> None:
    with results.measuring() as measurement:
        parts = {name: results.stamped({"proxy": 3}, measurement) for name in ("a", "b")}
    path = tmp_path / "conformance" / "results" / "suites" / "own.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"suite": "own", "parts": parts}))
    assert errors(tmp_path) == []
    edit(path, lambda record: record["parts"]["b"].update(proxy=4))
    [line] = errors(tmp_path)
    assert line.startswith("conformance/results/suites/own.json#b is not what its tool wrote")


def test_the_kept_results_are_as_their_tools_wrote_them() -> None:
    assert list(results.errors()) == []


def test_processes_that_outlived_their_parents_count_as_own() -> None:
    started = subprocess.Popen([sys.executable, "-c", _ORPHAN])
    watch = Watch(started.pid)
    end = time.monotonic() + deadline(60.0)
    while started.poll() is None and time.monotonic() < end:
        watch.look()
        time.sleep(0.1)
    while watch.counts()[0] < 80 and time.monotonic() < end:
        time.sleep(0.1)
    assert watch.counts()[0] >= 80, "of its child, which used a second of processor time"


def test_brief_work_of_others_is_not_lost() -> None:
    """The machine's own count of busy ticks misses most of it."""
    brief = "import time\nwhile True: time.sleep(0.0002)"
    other = subprocess.Popen([sys.executable, "-c", brief])
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        watch = Watch(started.pid)
        end = time.monotonic() + deadline(60.0)
        while watch.counts()[1] < 20 and time.monotonic() < end:
            time.sleep(0.1)
        own, others = watch.counts()
    finally:
        for process in (other, started):
            process.kill()
            process.communicate()
    assert others >= 20
    assert own < 20


def test_processor_time_of_others_is_counted() -> None:
    measure = "import time; from harness.results import measuring\n"
    measure += "with measuring() as it: time.sleep(1); print(it.others_cpu())"
    command = [sys.executable, "-c", measure]
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=_ROOT)
    finally:
        other.kill()
        other.wait()
    # (If the loop got less than that, then because still others ran.)
    assert float(done.stdout) > 0.2 / (os.cpu_count() or 1)
