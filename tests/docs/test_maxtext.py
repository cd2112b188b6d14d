"""docs/maxtext.md shows the commands that scripts/maxtext runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from benchmarks.maxtext_runs import DIRECT, ELASTIC, MODEL, SLICES
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
