from __future__ import annotations

import dataclasses

import pytest

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import (
    comma_separated,
    flag,
    parse_flags,
    parse_or_exit,
    port,
    prefixed_flags,
    seconds,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    server_port: int | None = flag(None, parse=port, help="Where it serves.")
    name: str = flag("unnamed", env=("SPS_NAME", "OTHER_NAME"), help="What it is called.")
    hosts: tuple[str, ...] = flag((), parse=comma_separated, help="Where.")
    wait_s: float = flag(1.5, parse=seconds, help="How long.")
    count: int = flag(3, help="How many.")
    verbose: bool = flag(False, help="Whether it talks.")
    node: bool = flag(True, help="A switch whose name begins with no.")
    xla: tuple[str, ...] = prefixed_flags(help="Passed on.")

    def __post_init__(self) -> None:
        if self.count == 13:
            raise InvalidRequestError("--count", self.count, "a lucky number")


def test_defaults_hold_without_flags() -> None:
    assert parse_flags(Options, [], {}) == Options()


def test_every_form_of_a_flag_is_read() -> None:
    argv = [
        "--server_port=0",
        "--name",
        "ada",
        "--hosts=a, b",
        "--verbose",
        "--nonode",
        "--count=-1",
    ]
    options = parse_flags(Options, argv, {})
    assert options == Options(
        server_port=0, name="ada", hosts=("a", "b"), verbose=True, node=False, count=-1
    )


@pytest.mark.parametrize(
    ("word", "node"), [("--node", True), ("--node=false", False), ("--node=1", True)]
)
def test_a_switch_may_have_a_name_that_begins_with_no(word: str, node: bool) -> None:
    assert parse_flags(Options, [word], {}).node is node


def test_a_value_may_hold_an_equals_sign_or_be_empty() -> None:
    assert parse_flags(Options, ["--name=a=b"], {}).name == "a=b"
    assert parse_flags(Options, ["--name="], {}).name == ""


def test_flags_with_the_prefix_are_gathered_as_written() -> None:
    options = parse_flags(Options, ["--xla_a=1", "--count=2", "--xla_b"], {})
    assert options.xla == ("--xla_a=1", "--xla_b")


def test_a_flag_goes_before_its_variables_and_these_in_order() -> None:
    both = {"SPS_NAME": "one", "OTHER_NAME": "two"}
    assert parse_flags(Options, ["--name=flag"], both).name == "flag"
    assert parse_flags(Options, [], both).name == "one"
    assert parse_flags(Options, [], {"SPS_NAME": "", "OTHER_NAME": "two"}).name == "two"


@pytest.mark.parametrize(
    ("argv", "field"),
    [
        (["--server_port=70000"], "--server_port"),
        (["--server_port=-1"], "--server_port"),
        (["--server_port=x"], "--server_port"),
        (["--server_port"], "--server_port"),
        (["--hosts=a,,b"], "--hosts"),
        (["--wait_s=0"], "--wait_s"),
        (["--wait_s=nan"], "--wait_s"),
        (["--wait_s=inf"], "--wait_s"),
        (["--wait_s=soon"], "--wait_s"),
        (["--count=1.5"], "--count"),
        (["--count=13"], "--count"),
        (["--verbose=maybe"], "--verbose"),
        (["--xla=1"], "--xla"),
        (["server_port=1"], "server_port=1"),
        (["--"], "--"),
    ],
)
def test_a_wrong_flag_is_refused_by_name(argv: list[str], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_flags(Options, argv, {})
    assert caught.value.field == field


def test_a_wrong_variable_is_refused_by_its_own_name() -> None:
    @dataclasses.dataclass(frozen=True)
    class WithVariable:
        wait_s: float = flag(1.0, parse=seconds, env="SPS_WAIT", help="How long.")

    with pytest.raises(InvalidRequestError) as caught:
        parse_flags(WithVariable, [], {"SPS_WAIT": "soon"})
    assert caught.value.field == "SPS_WAIT"


def test_an_unknown_flag_ends_the_process_and_names_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_or_exit(Options, "server", ["--sever_port=1"])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "--sever_port" in said
    assert "did you mean --server_port?" in said


def test_help_lists_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_or_exit(Options, "server", ["--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    for field in dataclasses.fields(Options):
        assert f"--{field.name}" in said
        assert field.metadata["flag"].help in said
    assert "variable SPS_NAME or OTHER_NAME, default unnamed" in said
