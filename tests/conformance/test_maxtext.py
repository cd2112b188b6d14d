"""docs/maxtext.md shows the commands that scripts/maxtext runs, whose waits come to an end."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from conformance import maxtext_runs
from conformance.maxtext_runs import DIRECT, ELASTIC, MODEL, SLICES, Run, elastic_run
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
    direct, elastic = (_options(b.text) for b in blocks_of(_PAGE) if b.language == "text")
    assert {**_texts(MODEL), **direct} == _texts(DIRECT)
    assert {**_texts(SLICES), "dcn_data_parallelism": "-1", **elastic} == _texts(ELASTIC)


def test_the_page_installs_the_release_of_the_script() -> None:
    script = (ROOT / "scripts" / "maxtext").read_text()
    release = re.search(r"^release=(\S+)$", script, re.MULTILINE)
    assert release is not None
    assert f"'maxtext[tpu]=={release[1]}'" in _PAGE.read_text()


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
