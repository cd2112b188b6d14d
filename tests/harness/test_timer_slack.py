"""Timers may be late in all processes of tests: pytest's own, forks, and those that they start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.layers.timer_slack import SLACK_NS

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has timers with slack"),
    pytest.mark.local,
]
_SLACK = Path("/proc/self/timerslack_ns")
_PRINT_SLACK = f"print(open('{_SLACK}').read())"
_START_ANOTHER = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_PRINT_SLACK!r}])"


def test_this_process_has_it() -> None:
    assert int(_SLACK.read_text()) == SLACK_NS


@pytest.mark.parametrize("source", [_PRINT_SLACK, _START_ANOTHER])
@pytest.mark.parametrize("start", ["forked", pytest.param("real", marks=pytest.mark.real_starts)])
def test_processes_that_it_starts_have_it(start: str, source: str) -> None:
    output = subprocess.check_output([sys.executable, "-c", source], text=True)
    assert int(output) == SLACK_NS, start
