"""The site is built, its links lead somewhere, and it takes nothing from elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from harness.deadlines import deadline
from tests.docs.blocks import ROOT, blocks_of, pages

_DEADLINE_S = deadline(120.0)
#: Directories whose files a page may name, as `DIRECTORY/…` in code.
_OURS = (
    r"(docs|examples|yamls|scripts|harness|tests|benchmarks|stress|conformance"
    r"|shared_pathways_service)"
)
_FILE = re.compile(rf"(?:\./)?({_OURS}/[A-Za-z0-9_./-]*[A-Za-z0-9_/-])")

#: What is left in a paragraph where Python-Markdown did not see a list or a table.
_UNREAD = re.compile(r"^(- |\| |\|--|\d+\. )", re.MULTILINE)


class _Loads(HTMLParser):
    """Gathers what a browser fetches by itself, and the text of paragraphs."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.paragraphs: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed"):
            self.fetched.append(given.get("src") or "")
        if tag == "link":
            self.fetched.append(given.get("href") or "")
        if tag == "p":
            self._inside = True
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "p"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.paragraphs[-1] += data


def _build(script: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(script), directory.name],
        cwd=directory.parent,
        env={**os.environ, "SPS_ENVIRONMENT": sys.prefix},
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a broken link or a page outside of the navigation ends the build."""
    directory = tmp_path_factory.mktemp("site")
    done = _build(ROOT / "scripts" / "docs", directory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"{directory}/index.html\n"
    return directory


def _read(site: Path) -> Iterator[tuple[Path, _Loads]]:
    for file in sorted(site.rglob("*.html")):
        seen = _Loads()
        seen.feed(file.read_text())
        yield file, seen


def test_every_page_is_there(site: Path) -> None:
    docs = ROOT / "docs"
    for page in docs.rglob("*.md"):
        # (A folder's README is its index.)
        name = "index.html" if page.stem == "README" else f"{page.stem}.html"
        assert (site / page.relative_to(docs)).with_name(name).exists(), page


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "scripts", checkout / "scripts")
    shutil.copy(ROOT / "mkdocs.yml", checkout)
    (checkout / "docs").mkdir()
    (checkout / "docs" / "index.md").write_text("# Start\n\n[link](index.md#missing-heading)\n")
    done = _build(checkout / "scripts" / "docs", tmp_path / "site")
    assert done.returncode != 0
    assert "#missing-heading" in done.stderr


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for file, seen in _read(site):
        away = [url for url in seen.fetched if url.startswith(("http:", "https:", "//"))]
        assert not away, (file, away)
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(https?:)?//", style.read_text()), style


def test_lists_and_tables_are_read_as_such(site: Path) -> None:
    for file, seen in _read(site):
        for paragraph in seen.paragraphs:
            assert not _UNREAD.search(paragraph), (file, paragraph)


def test_the_checkout_is_left_as_it_was(site: Path) -> None:
    assert not (ROOT / "site").exists()


def _inline(page: Path) -> Iterator[Token]:
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text()):
        yield from token.children or ()


def test_files_that_are_named_are_there() -> None:
    for page in pages():
        codes = [token.content for token in _inline(page) if token.type == "code_inline"]
        codes += [b.text for b in blocks_of(page) if b.language in ("sh", "console")]
        for named in (match[1] for text in codes for match in _FILE.finditer(text)):
            assert (ROOT / named).exists(), f"{page.name} names {named}"


def test_links_lead_to_files() -> None:
    """mkdocs looks at those of the site; a reader of the repository follows the others too."""
    for page in pages():
        targets = [str(t.attrs["href"]) for t in _inline(page) if t.type == "link_open"]
        for target in targets:
            path = target.partition("#")[0]
            assert "://" not in target, f"{page.name} links to {target}"
            assert not path or (page.parent / path).exists(), f"{page.name} links to {target}"
