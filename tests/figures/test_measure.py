"""Each kept result has a command that renews it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from harness.figures.blocks import BLOCKS
from harness.results import FOLDERS, ROOT

#: Commands that renew results which `scripts/measure` does not name, by file or folder.
_OTHERS = {
    "conformance/results/engines/": "scripts/conformance --engines --suite SUITE --write",
    "conformance/results/suites/": "scripts/conformance --suite SUITE --write",
    "conformance/results/faults.json": "scripts/compat --write",
    "conformance/results/releases.json": "scripts/compat --write",
    "conformance/results/maxtext.json": "scripts/maxtext",
    "conformance/results/maxtext_distributed.json": "scripts/maxtext --engine distributed",
}
#: Programs whose results are not kept.
_NOT_KEPT: set[str] = set()


def measured() -> dict[str, str]:
    """Returns the modules that `scripts/measure` runs, by the results that they write."""
    script = (ROOT / "scripts" / "measure").read_text()
    rows = re.findall(r'^  "(\w+)\|(\w+)\|([\w.]+)', script, re.MULTILINE)
    found = {f"{folder}/results/{name}.json": module for name, folder, module in rows}
    assert len(found) == len(rows) > 25
    return found


def kept() -> list[str]:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.json")]
    return [str(path.relative_to(ROOT)) for path in paths]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")


def test_each_kept_result_has_a_command_that_renews_it() -> None:
    known = (*measured(), *_OTHERS)
    assert [result for result in kept() if not result.startswith(known)] == []


def test_other_commands_renew_results_that_are_kept() -> None:
    results = kept()
    for name, command in _OTHERS.items():
        assert any(result.startswith(name) for result in results), name
        assert (ROOT / command.split()[0]).exists(), command


def test_each_program_that_keeps_a_result_is_measured() -> None:
    programs = {
        module_of(path)
        for folder in ("benchmarks", "stress")
        for path in (ROOT / folder).rglob("*.py")
        if '"__main__"' in (text := path.read_text())
        and re.search(r"(?:write_result|main_apart)\(", text)
    }
    assert programs - _NOT_KEPT == set(measured().values())


def test_pages_name_the_program_that_renews_their_figures() -> None:
    for name, block in BLOCKS.items():
        if block.source in _OTHERS:
            assert block.command == _OTHERS[block.source], name
        else:
            assert block.command.split()[0] == measured()[block.source], name


def test_a_kept_proof_saw_each_slow_down() -> None:
    path = ROOT / "benchmarks" / "results" / "gate_proof.json"
    assert measured()["benchmarks/results/gate_proof.json"] == "benchmarks.gate"
    if path.exists():
        rows = json.loads(path.read_text())["result"]
        assert len(rows) > 9
        assert {row: times for row, times in rows.items() if times <= 1} == {}
