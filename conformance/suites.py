"""Test suites that `scripts/conformance` runs: their sources and environments, made on first use.

Both live in the user's cache directory. A source is a shallow clone of a tag (git's
`url.BASE.insteadOf` names a mirror); an environment has JAX, the released package, and what its
tests need, but nothing of this project: a client needs only the plug-in's files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness.own_service import ROOT

__all__ = ["Suite", "load_suites", "make_environment", "make_source", "versions"]

SUITES = Path(__file__).with_suffix(".toml")
CONSTRAINTS = ROOT / "constraints.txt"
#: What every suite is run with.
#: With grpcio, without which no proxy can call Python functions of a client.
BASE = ("pytest>=8.3", "pytest-timeout>=2.3", "absl-py", "scipy", "grpcio>=1.85.1")
#: Marks a complete environment or source; contains its inputs.
COMPLETE = "complete.json"
PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite:
    """The tests of one library.

    Attributes:
      name: As in ``--suite NAME``.
      repository: OWNER/NAME on GitHub.
      ref: A tag, or a commit where no tag fits.
      parts: The arguments for pytest of each process, by the part's name.
      requirements: Packages in addition to JAX; first the library itself, at the same version.
      paths: The checked-out paths; everything if empty. A library whose tests lie outside of its
        package is better tested as installed.
      directory: Where pytest runs, inside the checkout.
      devices: How many the tests have.
      environment: Variables for the tests, both ways.
      jax_settings: Of `jax.config`, by name, both ways.
      note: Omitted tests, and the reason.
    """

    name: str
    repository: str
    ref: str
    parts: Mapping[str, list[str]]
    requirements: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    directory: str = "."
    devices: int = 8
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    jax_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    note: str = ""


def load_suites(path: Path = SUITES) -> dict[str, Suite]:
    """Returns all suites by name."""
    return {name: _suite(name, table) for name, table in tomllib.loads(path.read_text()).items()}


def _suite(name: str, table: dict[str, Any]) -> Suite:
    known = {field.name for field in dataclasses.fields(Suite)} - {"name"}
    if unknown := table.keys() - known:
        raise ValueError(f"suite {name}: {sorted(unknown)} unknown; there is {sorted(known)}")
    for key in {"requirements", "paths"} & table.keys():
        table[key] = tuple(table[key])
    return Suite(name=name, **table)


def cache_directory() -> Path:
    """Returns where the scripts keep what can be made again."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("SPS_CACHE_DIR") or default / "shared-pathways-service")


def make_source(suite: Suite) -> Path:
    """Returns the checkout of a suite, which is made if there is none yet."""
    made_from = {"repository": suite.repository, "ref": suite.ref, "paths": suite.paths}
    return _make(f"source-{suite.name}", made_from, lambda target: _clone(suite, target))


def make_environment(suite: Suite) -> Path:
    """Returns the interpreter of a suite's environment, which is made if there is none yet."""
    constraints = constraints_of(suite.requirements, CONSTRAINTS.read_text())
    made_from = {
        "python": sys.version,
        "prefix": sys.base_prefix,
        "constraints": constraints,
        "requirements": (*BASE, *suite.requirements),
    }
    name = f"conformance-{suite.name}"
    return (
        _make(name, made_from, lambda target: _install(suite, constraints, target)) / "bin/python"
    )


def constraints_of(requirements: tuple[str, ...], constraints: str) -> str:
    """Returns the constraints without packages whose version the suite sets itself.

    JAX stays at the release of the proxy that the suite is compared with.
    """
    chosen = {_package(line) for line in requirements if "=" in line or "<" in line}
    lines = [line for line in constraints.splitlines() if _package(line) not in {"jax", "jaxlib"}]
    return "\n".join(
        [
            *(line for line in lines if line.strip() and _package(line) not in chosen),
            *(f"{name}=={version(name)}" for name in ("jax", "jaxlib")),
        ]
    )


def versions(python: Path, requirements: tuple[str, ...]) -> dict[str, str]:
    """Returns the versions in an environment: JAX's, and those of pinned requirements."""
    program = "import sys; from importlib.metadata import version as v; import json; "
    program += "print(json.dumps({name: v(name) for name in sys.argv[1:]}))"
    pinned = [_package(requirement) for requirement in requirements if "==" in requirement]
    names = dict.fromkeys(("jax", "jaxlib", *pinned))
    told = subprocess.run([python, "-c", program, *names], check=True, capture_output=True)
    found: dict[str, str] = json.loads(told.stdout)
    return found


def _package(requirement: str) -> str:
    found = PACKAGE.match(requirement)
    return found[0].lower().replace("_", "-") if found else ""


def _make(name: str, made_from: dict[str, Any], make: Any) -> Path:
    text = json.dumps(made_from, sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:10]
    target = cache_directory() / f"{name}-{key}"
    if not (target / COMPLETE).exists():
        print(f"Setting up {target} (once) ...", file=sys.stderr, flush=True)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        make(target)
        (target / COMPLETE).write_text(text)
    return target


def _clone(suite: Suite, target: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", target, *arguments], check=True)

    git("init", "--quiet", "--initial-branch=main")
    git("fetch", "--quiet", "--depth=1", f"https://github.com/{suite.repository}", suite.ref)
    git("checkout", "--quiet", "FETCH_HEAD", "--", *(suite.paths or (".",)))


def _install(suite: Suite, constraints: str, target: Path) -> None:
    def run(*command: str | Path) -> None:
        subprocess.run(command, check=True)

    python = target / "bin/python"
    run(sys.executable, "-m", "venv", target)
    run(python, "-m", "pip", "install", "--quiet", "uv")
    (target / "constraints.txt").write_text(constraints)
    install = (target / "bin/uv", "pip", "install", "--quiet", "--python", python)
    run(*install, "--constraint", target / "constraints.txt", "jax", *BASE, *suite.requirements)
