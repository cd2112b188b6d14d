"""Every statement of docs/migrating.md has tests that show it; migrating.toml names them."""

from __future__ import annotations

import importlib.util
import inspect
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from shared_pathways_service import isc_pathways
from tests.docs.blocks import DOCS, ROOT
from tests.upstream import upstream_keywords

PAGE = (DOCS / "migrating.md").read_text(encoding="utf-8")
CLAIMS: list[Mapping[str, list[str] | str]] = tomllib.loads(
    (Path(__file__).parent / "migrating.toml").read_text(encoding="utf-8")
)["claim"]


def statements() -> Iterator[str]:
    """Returns each row of a table and each sentence; code blocks are run by test_blocks.py."""
    text = re.sub(r"^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    # A table's head is the line above its rule.
    text = re.sub(r"^\|.*\n\| ---.*\n", "", text, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\n+", text):
        if not paragraph or paragraph.startswith("#"):
            continue
        if paragraph.startswith("|"):
            yield from paragraph.splitlines()
        else:
            yield from re.split(r"(?<=[.]) +(?=[A-Z`])", " ".join(paragraph.split()))


def test_every_statement_has_a_test() -> None:
    without = [
        statement
        for statement in statements()
        if not any(str(claim["says"]) in statement for claim in CLAIMS)
    ]
    assert without == []


@pytest.mark.parametrize("claim", CLAIMS, ids=[str(claim["says"])[:40] for claim in CLAIMS])
def test_each_test_exists_and_each_claim_is_made(claim: Mapping[str, list[str] | str]) -> None:
    assert any(str(claim["says"]) in statement for statement in statements())
    assert claim["tests"]
    for test in claim["tests"]:
        file, _, name = test.partition("::")
        source = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {name}\(", source, re.MULTILINE), test


def test_the_new_keywords_are_those_that_upstream_does_not_have() -> None:
    [listed] = [s for s in statements() if s.startswith("New keywords: ")]
    new = [
        name
        for name in inspect.signature(isc_pathways.connect).parameters
        if name not in upstream_keywords()
    ]
    assert re.findall(r"`([a-z_]+)`", listed) == new


def test_there_is_no_editor_on_a_cluster_here() -> None:
    assert importlib.util.find_spec("shared_pathways_service.start_vscode_on_cpu_np") is None
