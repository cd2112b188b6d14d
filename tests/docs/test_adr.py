"""Records of decisions have one form, and the index has each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

_FOLDER = ROOT / "docs" / "adr"
_RECORDS = sorted(_FOLDER.glob("[0-9]*.md"))
_SECTIONS = ["Context", "Decision", "Consequences"]
_ROW = re.compile(r"^\| (\d{4}) \| \[(.+)\]\((.+)\) \|$", re.MULTILINE)
#: Folders of the repository that a record may name files of; other names are of the package's.
_FOLDERS = (
    "benchmarks",
    "conformance",
    "docs",
    "examples",
    "harness",
    "scripts",
    "stress",
    "tests",
)
_FILE = re.compile(r"`([a-z_]+(?:/[a-z0-9_-]+)*/(?:[a-z0-9_-]+\.[a-z]+)?|[a-z_]+\.py)`")
_LONGEST = 50


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ").partition(". ")[2]


def test_each_record_has_a_number_of_its_own() -> None:
    numbers = [record.name[:4] for record in _RECORDS]
    assert sorted(set(numbers)) == numbers


@pytest.mark.parametrize("record", _RECORDS, ids=lambda record: record.name[:4])
def test_a_record_has_the_three_sections(record: Path) -> None:
    text = record.read_text()
    assert re.fullmatch(r"\d{4}(-[a-z0-9]+)+\.md", record.name), record.name
    assert text.startswith(f"# {int(record.name[:4])}. "), "the title begins with the number"
    assert re.findall(r"^#+ (.*)$", text, re.MULTILINE)[1:] == _SECTIONS
    sections = re.split(r"^## .*$", text, flags=re.MULTILINE)[1:]
    assert all(section.strip() for section in sections), "a section is empty"
    assert len(text.splitlines()) <= _LONGEST, "one decision per record"


@pytest.mark.parametrize("record", _RECORDS, ids=lambda record: record.name[:4])
def test_files_that_a_record_names_are_there(record: Path) -> None:
    for name in _FILE.findall(record.read_text()):
        root = ROOT if name.startswith(_FOLDERS) else ROOT / "shared_pathways_service"
        assert (root / name).exists(), f"{record.name} names {name}"


def test_the_index_has_each_record_once() -> None:
    rows = sorted(_ROW.findall((_FOLDER / "README.md").read_text()))
    found = [(record.name[:4], _title(record.read_text()), record.name) for record in _RECORDS]
    assert rows == found
