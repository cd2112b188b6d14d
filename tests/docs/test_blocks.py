"""Every code block of the documentation is run, or named with the reason why not."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from harness.deadlines import deadline
from harness.embedded import shut_down
from tests.docs import commands
from tests.docs.blocks import ROOT, all_blocks, blocks_of, is_run, not_run, pages

_DEADLINE_S = deadline(500.0)
_LEFT_OUT = not_run()
_BLOCKS = list(all_blocks())
_RUN = sorted({block.page for block in _BLOCKS if is_run(block, _LEFT_OUT)})
#: (As a program, not as a module: what such a program starts may be forked, too.)
_RUN_PAGE = "import sys; from tests.docs.run_page import main; main(*sys.argv[1:])"
#: What a reader has beside the page, in a checkout.
_BESIDE = ("examples", "scripts", "yamls", "pyproject.toml", "constraints.txt")


@pytest.fixture
def as_a_reader(own_directories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory as a reader's checkout, and the commands `sps` and `python`."""
    programs = tmp_path / "bin"
    place = tmp_path / "checkout"
    programs.mkdir()
    place.mkdir()
    for name, module in (("sps", "-m shared_pathways_service.cli"), ("python", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    for name in _BESIDE:
        (place / name).symlink_to(ROOT / name)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Wide enough for tables, and without colour.
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return place


@pytest.mark.parametrize("page", _RUN)
def test_a_page_does_what_it_says(page: str, as_a_reader: Path) -> None:
    # (A file, not a pipe: a service that a page leaves behind would hold that open.)
    log = as_a_reader.with_suffix(".log")
    try:
        with log.open("w") as out:
            done = subprocess.run(
                [sys.executable, "-c", _RUN_PAGE, page, str(as_a_reader)],
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=_DEADLINE_S,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        error.add_note(log.read_text())
        raise
    finally:
        shut_down()
    assert done.returncode == 0, log.read_text()


def test_every_block_is_run_or_named() -> None:
    loose = [
        f"{block.page}:{block.line}: {block.language or 'no language'}: {block.first_line}"
        for block in _BLOCKS
        if not is_run(block, _LEFT_OUT) and not any(entry.names(block) for entry in _LEFT_OUT)
    ]
    assert not loose, "neither run nor named in not_run.toml"


def test_no_reason_is_left_of_a_block_that_is_gone() -> None:
    for entry in _LEFT_OUT:
        named = [block for block in _BLOCKS if entry.names(block)]
        assert entry.reason.strip(), entry
        assert len(named) == 1 if entry.begins else named, (entry, named)


def test_what_is_typed_is_understood() -> None:
    for block in _BLOCKS:
        for words in commands.typed(block):
            commands.check(words, where=f"{block.page}:{block.line}")


def test_what_is_named_is_known() -> None:
    for page in pages():
        for words in commands.named(page):
            commands.check_names(words, where=page.name)


def test_blocks_are_read_as_a_reader_does(tmp_path: Path) -> None:
    page = ROOT / "docs" / "index.md"
    shown = [block.shows for block in blocks_of(page) if block.language == "python"]
    assert shown[0] == "8 devices in slices [0, 1]\n"
