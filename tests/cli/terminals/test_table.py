"""The table of cases and shells in the documentation."""

from __future__ import annotations

from harness.processes import REPOSITORY
from tests.cli.terminals.shells import DIALECTS
from tests.cli.terminals.table import PAGE, text, with_table


def test_the_page_has_each_case_in_each_shell() -> None:
    page = PAGE.read_text()
    assert page == with_table(page), "run `python -m tests.cli.terminals.table`"
    assert text().splitlines()[0] == f"| Case | {' | '.join(DIALECTS)} |"


def test_ci_installs_each_shell() -> None:
    script = (REPOSITORY / "scripts" / "shells").read_text()
    assert f"for shell in {' '.join(DIALECTS)}; do" in script
