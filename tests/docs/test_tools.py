"""What looks at the documentation sees what is wrong with it."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from harness.deadlines import deadline
from tests.docs import commands, raised
from tests.docs.blocks import ROOT, Block, NotRun, blocks_of, is_run
from tests.docs.run_page import commands_of, started_by

_DEADLINE_S = deadline(120.0)


def _block(text: str, language: str = "sh") -> Block:
    return Block(page="page.md", line=1, language=language, text=text)


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "scripts/docs_hooks.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lists_get_the_blank_line_that_they_need(hooks: ModuleType) -> None:
    page = "Two:\n- a\n  goes on\n- b\n\n```\nx\n- y\n```\n1. c\n"
    asked = "Two:\n\n- a\n  goes on\n- b\n\n```\nx\n- y\n```\n\n1. c\n"
    assert hooks.on_page_markdown(page) == asked
    assert hooks.on_page_markdown(asked) == asked


def test_commands_are_found_wherever_they_stand() -> None:
    text = (
        "A=1 sps list --json | head  # sps nothing\n"
        "x && sps status \\\n  --wait 5; sps reap &\n"
        "until sps status; do sleep 1; done\n"
    )
    found = [["list", "--json"], ["status", "--wait", "5"], ["reap"]]
    assert list(commands.typed(_block(text))) == found
    shown = "$ sps list\nsps shows this\n$ sps run -- sps\n"
    assert list(commands.typed(_block(shown, "console"))) == [["list"], ["run", "--", "sps"]]
    assert not list(commands.typed(_block("sps list", "python")))


@pytest.mark.parametrize(
    "words",
    [["lst"], ["list", "--jsn"], ["serve", "--spares", "-1"], ["delete"], ["logs", "--lines", "x"]],
)
def test_wrong_commands_are_seen(words: list[str]) -> None:
    with pytest.raises(Exception, match=r".") as seen:
        commands.check(words, where="page.md:3")
    assert "page.md:3" in str(seen.value) + "".join(getattr(seen.value, "__notes__", ()))


def test_short_forms_are_checked_by_name() -> None:
    commands.check_names(["logs", "NAME", "-f", "--lines", "N"], where="page.md")
    with pytest.raises(AssertionError, match="--lnes"):
        commands.check_names(["logs", "--lnes"], where="page.md")


def test_what_a_block_shows_stands_right_behind_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\na\n```\n\n```text\nA\n```\n\n```sh\nb\n```\n\nBut:\n\n```text\nB\n```\n"
    )
    found = [(block.language, block.shows) for block in blocks_of(page)]
    assert found == [("python", "A\n"), ("sh", None), ("text", None)]


def test_a_console_block_is_commands_and_what_each_shows() -> None:
    block = _block("$ a\n1\n2\n$ b\n", "console")
    assert commands_of(block) == [("a\n", "1\n2\n"), ("b\n", "")]


def test_a_reason_is_for_one_block() -> None:
    entry = NotRun(page="page.md", begins="make", reason="it takes a day")
    assert entry.names(_block("make all\n"))
    assert not is_run(_block("make all\n"), [entry])
    assert is_run(_block("ls\n"), [entry])
    assert not is_run(_block("x\n", "yaml"), [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```python\nraise ValueError('no')\n```\n", "ValueError: no"),
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "it shows\n1"),
        ("```console\n$ echo a\nb\n```\n", "it shows\na"),
        ("```sh\nfalse\n```\n", "exit code 1"),
        (
            "```console\n$ python -c 'exit(3)' || echo \"exit code $?\"\nexit code 4\n```\n",
            "code 3\n",
        ),
        ("```toml\n[profiles.x]\nlog_level = 'LOUD'\n```\n", "profiles.x.log_level"),
    ],
)
def test_a_page_that_is_wrong_fails(text: str, said: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.run_page", str(page), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    assert done.returncode == 1
    assert said in done.stderr
    assert f"{page}:1" in done.stderr


def test_a_command_is_started_without_a_shell_where_that_would_only_split_it() -> None:
    assert started_by("sps list --json\n")[1:] == [
        "-m",
        "shared_pathways_service.cli",
        "list",
        "--json",
    ]
    quoted = """python -c "print(1); print('a  b')" x=1"""
    assert started_by(quoted) == [sys.executable, "-c", "print(1); print('a  b')", "x=1"]
    for text in (
        "sps list | cat",
        "sps list; sps status",
        "sps list && true",
        "sps list >out",
        "(sps list)",
        "sps list &",
        "sps list $NAME",
        "sps list *",
        "sps list\nsps status",
        "A=1 sps list",
        "true",
        "",
    ):
        assert started_by(text) == ["bash", "-euo", "pipefail", "-c", text], text


def test_words_are_read_without_running_them() -> None:
    source = """
_HINT = "look again"

def _by(names):
    return f" by {', '.join(names)}" if names else ""

def fail(name, why):
    cause = f"{why} at {name.pod:g}"
    raise ProxyFailed(f"{name} ended: {cause}" + _by(names), hint=_HINT)
"""
    module = ast.parse(source)
    (found,) = raised._in_module(module, "x.py", frozenset({"ProxyFailed"}))
    assert found.text("message") == "NAME ended: WHY at POD by NAMES"
    assert found.text("hint") == "look again"
