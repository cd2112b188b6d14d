"""Writes the figures of the pages from the kept results, and says how old they are.

    python -m harness.figures.pages [--write]

A page has markers around each text of `blocks.py`. Without `--write` it prints what differs. The
ages are those at the commit in `docs/figures.txt`, which `--write` renews.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness import history
from harness.figures.blocks import BLOCKS, Block
from harness.page_texts import PageText
from harness.results import ROOT

__all__ = [
    "OLD",
    "ROOT",
    "age_of",
    "commit_of",
    "differences",
    "filled",
    "measured_on",
    "place_of",
    "rendered",
    "write",
    "written_at",
]

#: A figure is old after as many commits of what it measures.
OLD = 200
WRITTEN_AT = ROOT / "docs" / "figures.txt"
_WIDTH = 128


def written_at() -> str:
    """Returns the commit at which the pages were written."""
    return WRITTEN_AT.read_text().split()[0]


def rendered(block: Block, commit: str) -> str:
    """Returns a block's text: the figures, with their origin and age, or that there are none."""
    path = ROOT / block.source
    how = f"`{block.how}` measures it"
    if not path.exists():
        return f"This has not been measured with a current release: {how}."
    record = json.loads(path.read_text())
    origin = f"({_origin(block, record, commit)}; {how} again, `{block.source}` has it.)"
    return f"{filled(block.text(record['result']))}\n\n{filled(origin)}"


def filled(text: str) -> str:
    """Returns a text in lines of a page; a table as it is, with the text below it in lines."""
    if text.startswith("|"):
        table, _, rest = text.partition("\n\n")
        return f"{table}\n\n{filled(rest)}" if rest else table
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _origin(block: Block, record: Mapping[str, Any], commit: str) -> str:
    provenance = record.get("provenance")
    if provenance is not None:
        return measured_on(provenance, block.measures, commit)
    first = history.first_kept(block.source)
    day = history.date_of(first) if first else "a day that is not known"
    with_what = f"JAX {record['jaxlib']}, {record['cores']} cores"
    kept = f"Kept on {day}, before commits and load were recorded, with {with_what}"
    return f"{kept}{age_of(first, block.measures, commit)}"


def measured_on(provenance: Mapping[str, Any], measures: Sequence[str], commit: str) -> str:
    """Returns when and with what something was measured, and if it is old.

    Args:
      provenance: Of its result.
      measures: As a `Block` has it.
      commit: At which the page is written.
    """
    first, versions = provenance["commit"], provenance["versions"]
    return (
        f"Measured on {provenance['date'][:10]} at {commit_of(provenance)}, with JAX "
        f"{versions.get('jax')}, {provenance['cores']} cores of {provenance['cpu']}; "
        f"{_other_work(provenance)}; {_rounds(provenance)}{age_of(first, measures, commit)}"
    )


def commit_of(provenance: Mapping[str, Any]) -> str:
    """Returns the commit that was measured, and whether files differed from it."""
    if provenance["commit"] is None:
        return "a commit that is not known"
    changed = ", **with files that differ from it**" * bool(provenance["changed"])
    return f"commit {provenance['commit'][:10]}{changed}"


def age_of(measured: str | None, measures: Sequence[str], commit: str) -> str:
    """Returns, after a semicolon, that something is old or of an unknown age; or an empty text."""
    age = history.age(measured, measures, commit) if measured else None
    if age is None:
        return "; how many commits ago is not known"
    return f"; **older than {OLD} commits of what it measures**" if age > OLD else ""


def _other_work(provenance: Mapping[str, Any]) -> str:
    """Returns what else the machine did, as far as that is known."""
    # (What results had as "foreign_cpu" missed much of what ran briefly.)
    load, others = provenance.get("load_at_start"), provenance.get("others_cpu")
    at_start = "load not recorded" if load is None else f"load {load:.1f} at the start"
    if others is None:
        return f"{at_start}, others' processor time not recorded"
    return f"{at_start}, others used {others:.0%} of the processor time"


def _rounds(provenance: Mapping[str, Any]) -> str:
    """Returns the number of rounds, and the figure that differed most between them."""
    rounds, spread = provenance["rounds"], provenance["spread"]
    count = f"{rounds:,} round{'s' if rounds != 1 else ''}"
    if not spread:
        return count
    widest = max(spread, key=lambda name: spread[name])
    return f"{count}, which differed most in `{widest}`: by {spread[widest]:,.0%} of its median"


def place_of(name: str) -> PageText:
    """Returns where a block's text is."""
    begin = f"<!-- figures: {name} (scripts/figures) -->"
    return PageText(ROOT / BLOCKS[name].page, begin, "<!-- end of figures -->")


def differences(commit: str) -> Iterator[str]:
    """Yields the blocks whose text in the page is not that of the result."""
    for name, block in BLOCKS.items():
        if place_of(name).read() != rendered(block, commit):
            yield f"{block.page}: {name} is not what {block.source} has: scripts/figures --write"


def write() -> None:
    """Writes all blocks into their pages."""
    commit = history.head()
    if commit is None:
        raise RuntimeError("the ages of figures are counted in commits: git is needed")
    for name, block in BLOCKS.items():
        place_of(name).write(rendered(block, commit))
    WRITTEN_AT.write_text(f"{commit}\n")


def main() -> int:
    """Compares, or writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        write()
        return 0
    found = list(differences(written_at()))
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
