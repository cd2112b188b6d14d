"""What the benchmarks share: an embedded service in its own directories."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


@contextlib.contextmanager
def own_directories() -> Iterator[Path]:
    """Points the SPS_… directories of this process and its children at a scratch directory."""
    scratch = Path(tempfile.mkdtemp(prefix="sps-bench-"))
    names = {
        f"SPS_{name}_DIR": scratch / name.lower()[:1] for name in ("RUNTIME", "STATE", "CACHE")
    }
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: str(path) for name, path in names.items()})
    try:
        yield scratch
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def own_service(slices: str, spares: int, arguments: Sequence[str] = ()) -> Iterator[int]:
    """Runs `sps serve` in its own directories; yields its process id when it is ready."""
    command = [sys.executable, "-m", "shared_pathways_service.cli"]
    with own_directories() as scratch, (scratch / "serve.log").open("w") as log:
        serve = [*command, "serve", "--slices", slices, "--spares", str(spares), *arguments]
        process = subprocess.Popen(serve, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)
        try:
            subprocess.run(
                [*command, "status", "--wait", "120"],
                check=True,
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
            )
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
