"""The figures in the documentation are those of the kept results, and say how old they are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness import history, results
from harness.figures import pages
from harness.figures.blocks import BLOCKS, Block

#: Pages may be behind by as many commits of the package before they are to be written again.
COMMITS = 200
_ROOT = pages.ROOT


def git_is_there() -> None:
    if history.head() is None:
        pytest.skip("ages are counted in commits, and this is no checkout of git")


def test_each_page_has_the_figures_of_its_result() -> None:
    git_is_there()
    assert [name for name in BLOCKS if not pages.place_of(name).is_there()] == []
    assert list(pages.differences(pages.written_at())) == []


def test_the_ages_on_the_pages_are_not_old_themselves() -> None:
    git_is_there()
    age = history.age(pages.written_at(), ["shared_pathways_service"])
    assert age is not None, "scripts/figures --write"
    assert age < COMMITS, "scripts/figures --write"


def test_results_of_changed_files_are_measured_again() -> None:
    changed = set()
    for block in BLOCKS.values():
        if (path := _ROOT / block.source).exists():
            provenance = json.loads(path.read_text()).get("provenance", {})
            if provenance.get("changed"):
                changed.add(block.source)
    # To be measured again (scripts/measure). Only remove lines.
    assert changed == {"benchmarks/results/slow_links.json"}


def test_pages_cite_no_result_that_is_not_kept() -> None:
    for page in (_ROOT / "docs").rglob("*.md"):
        for cited in re.findall(
            r"(?:benchmarks|stress|conformance)/results/\S+?\.json", page.read_text()
        ):
            assert (_ROOT / cited).exists(), f"{page.name} cites {cited}"


def test_a_page_with_results_that_no_block_writes_is_known() -> None:
    by_block = {(block.page, block.source) for block in BLOCKS.values()}
    by_hand = {
        # Its table is written by `conformance.pages`, with a test of its own.
        ("docs/compatibility.md", "conformance/results/releases.json"),
    }
    for path in (_ROOT / "docs").glob("*.md"):
        page = f"docs/{path.name}"
        for cited in re.findall(
            r"(?:benchmarks|stress|conformance)/results/\S+?\.json", path.read_text()
        ):
            assert (page, cited) in by_block | by_hand


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Block:
    """Returns a block of a page of its own, whose result was just measured."""
    (tmp_path / "docs").mkdir()
    marker = "<!-- figures: own (scripts/figures) -->\n<!-- end of figures -->"
    (tmp_path / "docs" / "own.md").write_text(f"# Own\n\n{marker}\n\nMore.\n")
    block = Block(
        page="docs/own.md",
        source="benchmarks/results/own.json",
        measures=("shared_pathways_service",),
        command="benchmarks.own",
        text=lambda rows: f"It takes {rows['ms']} ms.",
    )
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "WRITTEN_AT", tmp_path / "docs" / "figures.txt")
    monkeypatch.setattr(pages, "BLOCKS", {"own": block})
    with results.measured():
        results.write_result("own", {"ms": 7}, tmp_path / block.source, {"ms": [7, 8], "s": [2, 2]})
    return block


def test_a_page_is_written_from_the_result(own: Block, tmp_path: Path) -> None:
    git_is_there()
    pages.write()
    text = (tmp_path / "docs" / "own.md").read_text()
    unwrapped = " ".join(text.split())
    assert "\nIt takes 7 ms.\n" in text
    assert f" at commit {str(history.head())[:10]}" in unwrapped
    assert re.search(
        r"; load \d+\.\d at the start, others used \d+% of the processor time; ", unwrapped
    )
    assert "; 2 rounds, which differed most in `ms`: by 13% of its median; " in unwrapped
    assert "older than" not in text
    assert text.endswith("\n<!-- end of figures -->\n\nMore.\n")
    assert list(pages.differences(pages.written_at())) == []


def test_a_page_that_was_edited_differs(own: Block, tmp_path: Path) -> None:
    git_is_there()
    pages.write()
    page = tmp_path / "docs" / "own.md"
    page.write_text(page.read_text().replace("7 ms", "6 ms"))
    assert list(pages.differences(pages.written_at())) == [
        "docs/own.md: own is not what benchmarks/results/own.json has: scripts/figures --write"
    ]


def test_an_old_figure_says_so(own: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git_is_there()
    monkeypatch.setattr(history, "age", lambda *_: pages.OLD + 1)
    text = " ".join(pages.rendered(own, "HEAD").split())
    assert "**older than 200 commits of what it measures**" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": 1, "spread": {}}, "; 1 round; "),
        ({"rounds": 1200, "spread": {}}, "; 1,200 rounds; "),
        (
            {"load_at_start": 0.31, "others_cpu": None},
            "; load 0.3 at the start, others' processor time not recorded; 2 rounds, ",
        ),
        (
            {"load_at_start": None, "others_cpu": 0.0},
            "; load not recorded, others used 0% of the processor time; 2 rounds, ",
        ),
        (
            {"commit": "5" * 40, "changed": True},
            " at commit 5555555555, **with files that differ from it**, with JAX ",
        ),
        ({"commit": "5" * 40, "changed": False}, " at commit 5555555555, with JAX "),
        ({"commit": None}, " at a commit that is not known, with JAX "),
    ],
)
def test_an_origin_has_what_is_known(
    own: Block, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    git_is_there()
    path = tmp_path / own.source
    record = json.loads(path.read_text())
    record["provenance"] |= changes
    path.write_text(json.dumps(record))
    assert words in " ".join(pages.rendered(own, "HEAD").split())


def test_a_figure_without_a_result_is_not_cited(own: Block, tmp_path: Path) -> None:
    (tmp_path / own.source).unlink()
    assert pages.rendered(own, "HEAD") == (
        "This has not been measured with a current release: `python -m benchmarks.own` measures it."
    )


def test_ages_count_the_commits_of_what_is_measured() -> None:
    git_is_there()
    head = history.head()
    assert head is not None
    assert history.age(head, ["shared_pathways_service"]) == 0
    assert history.age("0" * 40, ["shared_pathways_service"]) is None
    if history.resolve(f"{head}~30"):
        counted = history.age(f"{head}~30", ["."])
        assert counted is not None
        assert counted >= 30
