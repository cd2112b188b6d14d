"""Records a terminal in which a training loop survives a cut link, as an animated picture.

    python -m harness.testbed.record_cut_link docs/images/cut_link.svg

It takes `pyte`, a terminal emulator (pip install pyte), and the testbed. The program is the one
below; its connections to the API server are reset in the middle, and refused for some seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path

from harness.own_service import ROOT
from harness.testbed.clients import KIND, deployed, tenant
from harness.testbed.ways import Way, open_way
from shared_pathways_service.testing.testbed import Testbed, new_namespace

_COLUMNS, _ROWS = 92, 15
#: The steps before the cut, and in all.
_CUT_AFTER, _STEPS = 8, 18
#: Seconds for which the API server refuses connections.
_AWAY_S = 6.0
#: Seconds for which the last frame is shown, and for the whole recording.
_LAST_S, _DEADLINE_S = 4.0, 120.0
_LINE, _COLUMN = 18, 8.4

_PROGRAM = f"""\
import os, time
import jax, jax.numpy as jnp
from shared_pathways_service import isc_pathways

x = jnp.linspace(-1, 1, 256)

@jax.jit
def step(weights):
    loss = lambda w: jnp.mean((jnp.polyval(w, x) - jnp.sin(3 * x)) ** 2)
    return weights - 0.3 * jax.grad(loss)(weights), loss(weights)

def train():
    weights = jnp.zeros(6)
    for number in range({_STEPS}):
        weights, loss = step(weights)
        print(f"step {{number}}: loss {{loss:.4f}}")
        time.sleep(0.5)

with isc_pathways.connect(context="testbed", namespace=os.environ["TEST_NAMESPACE"],
                          expected_tpu_instances={{"{KIND}": 1}}):
    train()
"""


class Recording:
    """What a terminal showed, and when."""

    def __init__(self) -> None:
        pyte = importlib.import_module("pyte")
        self._screen = pyte.Screen(_COLUMNS, _ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._began = time.monotonic()
        self.frames: list[tuple[float, list[str]]] = []

    def feed(self, data: bytes) -> None:
        """Takes what a program wrote."""
        self._stream.feed(data)
        lines = [line.rstrip() for line in self._screen.display]
        if not self.frames or lines != self.frames[-1][1]:
            self.frames.append((time.monotonic() - self._began, lines))

    def svg(self) -> str:
        """Returns the frames as one picture that repeats."""
        length = self.frames[-1][0] + _LAST_S
        width, height = round(_COLUMNS * _COLUMN) + 20, _ROWS * _LINE + 20
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
            "<title>A training loop survives a cut link</title><style>",
            "text{font:14px ui-monospace,monospace;fill:#e6e6e6;white-space:pre}",
            "g{visibility:hidden}",
        ]
        ends = [at for at, _ in self.frames[1:]] + [length]
        for number, ((at, _), end) in enumerate(zip(self.frames, ends, strict=True)):
            begin, until = 100 * at / length, 100 * end / length
            parts.append(
                f"@keyframes f{number}{{0%,{begin:.3f}%{{visibility:hidden}}"
                f"{begin:.3f}%,{until:.3f}%{{visibility:visible}}"
                f"{until:.3f}%,100%{{visibility:hidden}}}}"
                f"#f{number}{{animation:f{number} {length:.2f}s step-end infinite}}"
            )
        parts.append('</style><rect width="100%" height="100%" rx="8" fill="#1e1e2e"/>')
        for number, (_, lines) in enumerate(self.frames):
            parts.append(f'<g id="f{number}">')
            parts += [
                f'<text x="10" y="{(row + 1) * _LINE}">{escape(line)}</text>'
                for row, line in enumerate(lines)
                if line
            ]
            parts.append("</g>")
        return "\n".join([*parts, "</svg>", ""])


@contextlib.contextmanager
def in_terminal(
    command: list[str], env: dict[str, str]
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Runs a command in a terminal for the length of the block; yields the terminal's other end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    child = subprocess.Popen(command, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        yield ours, child
    finally:
        child.kill()
        child.wait()
        os.close(ours)


def record(way: Way, env: dict[str, str], program: Path) -> Recording:
    """Runs the program, cuts its link, and returns what it showed.

    Raises:
      RuntimeError: The program failed, or took too long.
    """
    recording = Recording()
    recording.feed(b"$ python train.py\r\n")
    deadline = time.monotonic() + _DEADLINE_S
    shown, back_at = b"", 0.0
    with in_terminal([sys.executable, str(program)], env) as (terminal, child):
        while time.monotonic() < deadline:
            if back_at and time.monotonic() >= back_at:
                way.open()
                back_at = 0.0
            if not select.select([terminal], [], [], 0.1)[0]:
                continue
            try:
                data = os.read(terminal, 1 << 16)
            except OSError:  # The program has ended.
                break
            recording.feed(data)
            is_before = f"step {_CUT_AFTER}:".encode() not in shown
            shown += data
            if is_before and f"step {_CUT_AFTER}:".encode() in shown:
                way.refuse()
                way.cut()
                back_at = time.monotonic() + _AWAY_S
        if child.wait(10) or f"step {_STEPS - 1}:".encode() not in shown:
            raise RuntimeError(shown.decode(errors="replace"))
    return recording


def main() -> int:
    """Parses the arguments, records, writes the picture; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", type=Path)
    picture: Path = parser.parse_args().picture
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sps-record-")))
        os.environ |= {
            "SPS_STATE_DIR": str(directory / "state"),
            "SPS_RUNTIME_DIR": str(directory / "run"),
            "SPS_CONFIG": str(directory / "none.toml"),
        }
        testbed = stack.enter_context(Testbed.start(report=print))
        namespace = stack.enter_context(new_namespace(testbed))
        deployed(namespace, 1)
        way = stack.enter_context(open_way(namespace))
        env = {
            **os.environ,
            **tenant(namespace),
            "TERM": "xterm-256color",
            "PYTHONPATH": str(ROOT),
        }
        env["KUBECONFIG"] = str(way.kubeconfig(namespace, namespace.user("tenant")))
        program = directory / "train.py"
        program.write_text(_PROGRAM)
        recording = record(way, env, program)
    picture.write_text(recording.svg())
    return 0


if __name__ == "__main__":
    sys.exit(main())
