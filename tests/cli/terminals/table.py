"""Writes the table of cases and shells in `docs/programs.md`, from the tests of this folder.

python -m tests.cli.terminals.table
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.cli.terminals import test_input, test_job_control, test_signals, test_surroundings
from tests.cli.terminals.shells import DIALECTS, exceptions_of

__all__ = ["PAGE", "shell_tests", "text", "with_table"]

PAGE = Path(__file__).parents[3] / "docs" / "programs.md"
_BEGIN = "<!-- written by python -m tests.cli.terminals.table -->\n"
_END = "<!-- end of the shells -->\n"
_MODULES = (test_input, test_job_control, test_signals, test_surroundings)


def shell_tests() -> Iterator[Callable[..., object]]:
    """Yields each test that is run in all shells."""
    for module in _MODULES:
        for name, test in vars(module).items():
            if name.startswith("test_") and "any_shell" in inspect.signature(test).parameters:
                yield test


def _cases() -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yields each case, and why it is not tested in some shells."""
    for test in shell_tests():
        words = test.__name__.removeprefix("test_").replace("_", " ")
        alone = "run" in inspect.signature(test).parameters
        yield words if alone else f"{words} (with `sps run` only)", exceptions_of(test)


def text() -> str:
    """Returns the table."""
    lines = [f"| Case | {' | '.join(DIALECTS)} |", "|---" * (1 + len(DIALECTS)) + "|"]
    for words, left_out in _cases():
        cells = [left_out.get(name, "the same") for name in DIALECTS]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """Returns the page with the table as it should be."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    assert after, f"{PAGE} has no place for the table"
    return f"{before}{_BEGIN}{text()}{_END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
