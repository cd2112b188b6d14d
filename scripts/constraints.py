#!/usr/bin/env python3
"""Writes constraints.txt: the versions of all dependencies, as pip resolves them for each Python.

pip of each Python resolves all optional dependencies at once. It takes no version above that of
the present constraints.txt, unless `--upgrade` is given, and no faulty release of JAX. Where the
Pythons differ, lines have environment markers. Uses the standard library only.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from shared_pathways_service.api.faulty_jax import FAULTY_RELEASES  # noqa: E402

CONSTRAINTS = ROOT / "constraints.txt"
_HEAD = """\
# Written by scripts/constraints: the versions that the tests ran with (Linux).
# pip install --constraint constraints.txt .
"""
#: A line of constraints.txt: a name, its version, and from which and below which Python.
_LINE = re.compile(
    r"(?P<name>[\w.-]+)==(?P<version>[^;\s]+)"
    r'(?:; (?:python_version >= "(?P<first>[\d.]+)")?(?: and )?'
    r'(?:python_version < "(?P<end>[\d.]+)")?)?'
)
Python = tuple[int, ...]
#: Names in pip's normal form, and versions.
Pins = Mapping[str, str]


def pins_of(text: str, python: Python) -> Pins:
    """Returns the versions that constraints have for a Python, e.g. ``(3, 11)``.

    Raises:
      ValueError: A line is not of the form that `rendered` writes.
    """
    pins = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise ValueError(f"constraints.txt: {line!r} was not written by scripts/constraints")
        if _python(found["first"] or "0") <= python < _python(found["end"] or "99"):
            pins[found["name"]] = found["version"]
    return pins


def rendered(resolved: Mapping[Python, Pins]) -> str:
    """Returns the text of constraints for several Pythons.

    A package that one of them does not need has the version of its neighbour there.
    """
    lines = []
    for name in sorted({name for pins in resolved.values() for name in pins}):
        needing = [
            (pins[name], python) for python, pins in sorted(resolved.items()) if name in pins
        ]
        # The first Python with a version, and the version.
        runs = [(next(run)[1], version) for version, run in groupby(needing, itemgetter(0))]
        ends = [first for first, _ in runs[1:]]
        for number, (first, version) in enumerate(runs):
            limits = [f'python_version >= "{_text(first)}"'] * bool(number)
            limits += [f'python_version < "{_text(end)}"' for end in ends[number : number + 1]]
            lines.append(f"{name}=={version}" + "; " * bool(limits) + " and ".join(limits))
    return _HEAD + "\n".join(lines) + "\n"


def resolve(python: str, limits: Sequence[str]) -> Pins:
    """Returns what pip would install for a Python, with all optional dependencies."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    everything = f"{ROOT}[{','.join(project['optional-dependencies'])}]"
    with tempfile.TemporaryDirectory() as directory:
        environment, report = Path(directory, "environment"), Path(directory, "report.json")
        constraints = Path(directory, "constraints.txt")
        constraints.write_text("\n".join(limits))
        subprocess.run([python, "-m", "venv", environment], check=True)
        install: list[str | Path] = [environment / "bin/python", "-m", "pip", "install", "--quiet"]
        # (A new pip reads what a package needs without downloading it.)
        subprocess.run([*install, "--upgrade", "pip"], check=True)
        limited: list[str | Path] = ["--dry-run", "--report", report, "--constraint", constraints]
        subprocess.run([*install, *limited, everything], check=True)
        installed = [entry["metadata"] for entry in json.loads(report.read_text())["install"]]
    pins = {_canonical(entry["name"]): entry["version"] for entry in installed}
    del pins[project["name"]]
    return pins


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Resolves for each given Python."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", required=True, help="an interpreter")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    given = parser.parse_args()
    before = CONSTRAINTS.read_text()
    resolved = {}
    for python in given.python:
        version = _version_of(python)
        print(f"== Python {_text(version)}: {python}", flush=True)
        limits = [f"{name}<={pin}" for name, pin in pins_of(before, version).items()]
        resolved[version] = resolve(python, _sound([] if given.upgrade else limits))
    CONSTRAINTS.write_text(rendered(resolved))


def _sound(limits: Iterable[str]) -> list[str]:
    faulty = ",".join(f"!={release}" for release in FAULTY_RELEASES)
    return [*limits, f"jax{faulty}", f"jaxlib{faulty}"]


def _version_of(python: str) -> Python:
    told = subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:2], sep='.')"],
        check=True,
        capture_output=True,
        text=True,
    )
    return _python(told.stdout.strip())


def _python(text: str) -> Python:
    return tuple(int(part) for part in text.split("."))


def _text(python: Python) -> str:
    return ".".join(map(str, python))


if __name__ == "__main__":
    main()
