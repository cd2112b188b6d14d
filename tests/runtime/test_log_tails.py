"""The last lines of a log, however long they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared_pathways_service.runtime.embedded.log_directory import tail_of
from tests.pure import leaves_nothing_behind

__all__ = ["leaves_nothing_behind"]


@pytest.mark.parametrize("length", [1, 399, 400, 900, 100_000, 3 << 20])
@pytest.mark.parametrize("ends", ["", "\n"])
def test_long_lines_are_whole(length: int, ends: str, tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    written = [str(number) * length for number in range(5)]
    path.write_text("\n".join(written) + ends)
    for lines in (1, 2, 5, 1000):
        assert tail_of(path, lines) == written[-lines:]
    assert tail_of(path, 0) == []


def test_of_an_endless_line_it_is_the_end(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"first\n" + b"x" * (20 << 20) + b"end")
    [line] = tail_of(path, 1)
    assert line.endswith("xend")
    assert 16 << 20 <= len(line) < 20 << 20
