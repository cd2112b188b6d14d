"""Writes the tables of docs/compatibility.md from their kept results, with the ages of these.

    python -m conformance.pages [--write]

Without `--write` it prints what differs. `scripts/figures` calls this after
`harness.figures.pages`, and the ages are those at the commit of that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from conformance import faults, releases
from harness.figures.pages import written_at
from harness.page_texts import PageText


def tables() -> Iterator[tuple[PageText, str]]:
    """Yields each table's place and its text."""
    yield releases.TABLE, releases.rendered(*releases.load(), written_at())
    yield faults.TABLE, faults.rendered(faults.kept(), written_at())


def main() -> int:
    """Compares, or writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        for place, text in tables():
            place.write(text)
        return 0
    found = [place for place, text in tables() if place.read() != text]
    for place in found:
        print(f"{place.path.name}: {place.begin} is not what is kept: scripts/figures --write")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
