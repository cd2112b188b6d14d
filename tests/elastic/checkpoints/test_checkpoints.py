"""Checkpoints: on plain CPU devices, in object stores, and under kill -9."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.jax_checks.parent import RunCheck, child_that_answers
from harness.object_stores import object_store
from harness.processes import DEADLINE_S, REPOSITORY
from shared_pathways_service.elastic.checkpoints.files import list_checkpoints
from tests.elastic.checkpoints.checks_all import CHECKS

CHILD = "tests.elastic.checkpoints.checkpoint_child"
STORES = {"in_google_cloud_storage": "gs", "in_s3": "s3"}


@pytest.fixture(scope="module")
def run_check() -> Iterator[RunCheck]:
    with child_that_answers(CHILD) as run:
        yield run


@pytest.mark.parametrize("name", [name for name in CHECKS if name not in STORES])
def test_checkpoints(run_check: RunCheck, name: str) -> None:
    failure = run_check(name)
    assert not failure, failure


def test_in_object_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as undo:
        for store in STORES.values():
            for variable, value in undo.enter_context(object_store(store)).items():
                monkeypatch.setenv(variable, value)
        run = undo.enter_context(child_that_answers(CHILD))
        failures = {name: run(name) for name in STORES}
    assert not any(failures.values()), failures


@pytest.mark.race
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Each restart goes on from the newest committed step, and what it reads is whole."""
    saved, rounds = 0, 3
    for number in range(rounds + 1):
        last = number == rounds
        with subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.elastic.checkpoints.checkpoint_saver",
                tmp_path,
                "1" if last else "999",
            ],
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        ) as saver:
            assert saver.stdout is not None
            told = map(json.loads, saver.stdout)
            restored = _first(told, "restored")["step"]
            # It may have committed one more, whose word was lost.
            assert saved <= restored <= saved + 1
            saved = max(saved, restored)
            saved = _first(told, "checkpoint.saved")["step"]
            if last:
                break
            time.sleep(random.uniform(0.0, 0.5))
            saver.send_signal(signal.SIGKILL)
            for event in told:
                if event["kind"] == "checkpoint.saved":
                    saved = event["step"]
                assert event["kind"] != "checkpoint.failed", event
            assert saver.wait(DEADLINE_S) == -signal.SIGKILL
    assert saver.wait(DEADLINE_S) == 0
    good = [info.step for info in list_checkpoints(tmp_path) if info.state != "quarantined"]
    assert good == [saved]


def _first(told: Iterator[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(event for event in told if event["kind"] == kind)
