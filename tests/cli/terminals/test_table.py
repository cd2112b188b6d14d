"""The table of cases and shells in the documentation."""

from __future__ import annotations

from harness.processes import REPOSITORY
from tests.cli.terminals.shells import DIALECTS, needed_by
from tests.cli.terminals.table import PAGE, shell_tests, text, with_table

#: Of packages that each system has.
ESSENTIAL = {"nohup", "script", "setsid", "timeout", "xargs"}


def test_the_page_has_each_case_in_each_shell() -> None:
    page = PAGE.read_text()
    assert page == with_table(page), "run `python -m tests.cli.terminals.table`"
    assert text().splitlines()[0] == f"| Case | {' | '.join(DIALECTS)} |"


def test_ci_installs_each_shell_and_program() -> None:
    others = sorted({needed_by(test) for test in shell_tests()} - ESSENTIAL - {""})
    assert others == ["less", "tmux", "vim"]
    script = (REPOSITORY / "scripts" / "shells").read_text()
    assert f"for program in {' '.join([*DIALECTS, *others])}; do" in script
