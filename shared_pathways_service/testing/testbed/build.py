"""Builds the control plane's programs from Go modules, once, into the cache directory.

``modules/*/go.{mod,sum}`` pin the versions. The manifests (custom resources, webhooks) of two of
the modules are stored beside the programs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import filelock

from shared_pathways_service.testing.testbed.errors import TestbedUnavailable
from shared_pathways_service.testing.testbed.patches import PATCHES

__all__ = ["Programs", "find_built", "find_or_build"]

_MODULES = Path(__file__).parent / "modules"
#: The Go version that the modules require.
_GO = (1, 26)
#: Seconds to build one program, on a busy machine, from cold caches.
_BUILD_S = 3600.0


#: By program: the directory in ``modules``, and the Go package.
_PROGRAMS = {
    "etcd": ("etcd", "go.etcd.io/etcd/server/v3"),
    "kwok": ("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    "jobset": ("jobset", "sigs.k8s.io/jobset"),
    **{
        name: ("kubernetes", f"k8s.io/kubernetes/cmd/{name}")
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    },
}

#: Manifests by the name of their copy: the module, and the path in it.
_MANIFESTS = {
    "jobset-crd.yaml": (
        "jobset",
        "sigs.k8s.io/jobset",
        "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",
    ),
    "jobset-webhooks.yaml": (
        "jobset",
        "sigs.k8s.io/jobset",
        "config/components/webhook/manifests.yaml",
    ),
    **{
        f"kwok-{kind}.yaml": (
            "kwok",
            "sigs.k8s.io/kwok",
            f"kustomize/crd/bases/kwok.x-k8s.io_{kind}.yaml",
        )
        for kind in ("stages", "portforwards", "logs", "execs", "attaches")
    },
}


@dataclasses.dataclass(frozen=True)
class Programs:
    """The directory of the built programs."""

    directory: Path

    def path(self, name: str) -> Path:
        """Returns the file of a program, e.g. ``kube-apiserver``."""
        return self.directory / "bin" / name

    def manifest(self, name: str) -> Path:
        """Returns the file of a manifest, e.g. ``jobset-crd.yaml``."""
        return self.directory / "manifests" / name


def find_or_build(cache_dir: Path, report: Callable[[str], None]) -> Programs:
    """Returns the programs, after building missing ones.

    Concurrent calls build once. An interrupted build continues where it stopped.

    Args:
      cache_dir: The user's cache directory; a directory ``testbed`` is created in it.
      report: Called with one line per program that is built, and with the time that it took.

    Raises:
      TestbedUnavailable: There is no Go, or too old a one, or the build fails.
    """
    if (built := find_built(cache_dir)) is not None:
        return built
    version = _go_version()
    if version is None:
        raise TestbedUnavailable(
            "the testbed's control plane is built with Go, and there is no program `go`",
            hint=f"install Go {_GO[0]}.{_GO[1]} or newer, once: the built programs stay",
        )
    if _release(version) < _GO:
        raise TestbedUnavailable(
            f"the control plane needs Go {_GO[0]}.{_GO[1]} or newer, and `go` is {version}"
        )
    parent = cache_dir / "testbed"
    done = parent / f"{_key()}-{version}"
    parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(parent / "build.lock"):
        if not done.is_dir():
            _build(done, version, report)
    return Programs(done)


def find_built(cache_dir: Path) -> Programs | None:
    """Returns the programs without building any; None: they are not built, or for another Go."""
    # The programs can be used even if Go was removed since.
    version = _go_version() or "go*"
    built = sorted((cache_dir / "testbed").glob(f"{_key()}-{version}/bin"))
    return Programs(built[-1].parent) if built else None


def _go_version() -> str | None:
    """Returns e.g. ``go1.26.8``; None without Go."""
    if shutil.which("go") is None:
        return None
    return _go(["env", "GOVERSION"], cwd=_MODULES).strip()


def _release(version: str) -> tuple[int, int]:
    found = re.match(r"go(\d+)\.(\d+)", version)
    # A development version counts as new enough.
    return (int(found[1]), int(found[2])) if found else _GO


def _key() -> str:
    """Returns the cache key of programs and manifests, without Go's version."""
    names = " ".join([*(_program_key(name) for name in _PROGRAMS), *_MANIFESTS])
    return hashlib.sha256(names.encode()).hexdigest()[:16]


def _program_key(name: str) -> str:
    digest = hashlib.sha256(f"{platform.system()} {platform.machine()}".encode())
    module, _ = _PROGRAMS[name]
    for file in (_MODULES / module / "go.mod", _MODULES / module / "go.sum"):
        digest.update(file.read_bytes())
    digest.update(repr(PATCHES.get(module)).encode())
    return f"{name}-{digest.hexdigest()[:16]}"


def _build(directory: Path, version: str, report: Callable[[str], None]) -> None:
    """Creates a directory with all programs, and builds those that are new."""
    programs = directory.parent / "programs"
    programs.mkdir(exist_ok=True)
    files = {name: programs / f"{_program_key(name)}-{version}" for name in _PROGRAMS}
    missing = [name for name, file in files.items() if not file.exists()]
    if missing:
        report(
            f"building {', '.join(missing)} into {directory.parent}: once, about ten minutes of "
            "two cores for all where nothing is cached"
        )
    partial = directory.with_name(f"{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for made in (partial / "bin", partial / "manifests"):
        made.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="sps-build-") as copy:
        # The package's directory may be read-only, and Go may have to write.
        modules = Path(copy)
        shutil.copytree(_MODULES, modules, dirs_exist_ok=True)
        for manifest, (module, name, path) in _MANIFESTS.items():
            source = _module_files(name, modules / module) / path
            shutil.copyfile(source, partial / "manifests" / manifest)
        for name in missing:
            began = time.monotonic()
            _build_one(name, modules, files[name])
            report(f"built {name} in {time.monotonic() - began:.0f} s")
    for name, file in files.items():
        os.link(file, partial / "bin" / name)
    partial.replace(directory)


def _module_files(name: str, cwd: Path) -> Path:
    """Returns the directory of a module's files; downloads them if they are missing."""
    where = ["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", name]
    if found := _go(where, cwd).strip():
        return Path(found)
    _go(["mod", "download", name], cwd)
    return Path(_go(where, cwd).strip())


def _build_one(name: str, modules: Path, file: Path) -> None:
    module, package = _PROGRAMS[name]
    directory = modules / module
    if (patch := PATCHES.get(module)) is not None:
        source = _module_files(patch.module, directory)
        replaced = patch.apply(source, modules / f"{module}-source")
        _go(["mod", "edit", f"-replace={patch.module}={replaced}"], directory)
    made = file.with_name(f"{file.name}.partial")
    flags = ["-mod=readonly", "-trimpath", "-ldflags", "-s -w", "-o", str(made)]
    with contextlib.ExitStack() as stack:
        stack.callback(made.unlink, missing_ok=True)
        _go(["build", *flags, package], directory)
        made.replace(file)


def _go(arguments: list[str], cwd: Path) -> str:
    """Runs Go and returns its output."""
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    command = ["go", *arguments]
    try:
        ended = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_BUILD_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TestbedUnavailable(f"{' '.join(command)} took more than {_BUILD_S:.0f} s") from error
    if ended.returncode != 0:
        raise TestbedUnavailable(f"{' '.join(command)} failed: {ended.stderr.strip()[-2000:]}")
    return ended.stdout
