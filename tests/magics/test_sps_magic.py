"""The magic %sps in a shell of IPython, with a connection to a scripted service."""

from __future__ import annotations

import builtins
import concurrent.futures
import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from shared_pathways_service import Connection, InvalidRequestError, SlicesTaken
from shared_pathways_service.connection import one_live
from shared_pathways_service.magics import child_commands, sps_magic
from tests.agent.support import eventually
from tests.connection.bench import Bench
from tests.magics.conftest import Shell, shown_text

#: Names that programs of IPython have.
_BUILTINS = {*dir(builtins), "quit", "exit"}
CONNECT = "%sps connect tpuv6e:2x2=2"


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    return [*shown_text(captured.out), *shown_text(captured.err)]


def test_connect_is_shown_and_returned_and_released(
    bench: Bench, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = shell.run(f"it = {CONNECT} --priority 7 --no-local-devices\nit")
    assert isinstance(connection, Connection)
    assert connection.expected_tpu_instances == {"tpuv6e:2x2": 2}
    assert (connection._request.tenant.priority, connection._request.client.local_devices) == (
        7,
        False,
    )
    assert "<td>new</td>" in shell.displayed[0]
    assert any('<progress aria-label="progress"' in text for text in shell.displayed)
    assert "<td>serve</td>" in shell.displayed[-1]
    assert "<th>release</th><td>%sps release</td>" in shell.displayed[-1]
    # The table shows the progress, and the same request is the same connection.
    assert shell.run(f"{CONNECT} --priority 7 --no-local-devices") is connection
    assert "sps:" not in " ".join(printed(capsys))
    refused = shell.fail("%sps connect tpuv6e:2x2=1")
    assert isinstance(refused, InvalidRequestError)
    [line] = printed(capsys)
    assert line.endswith("of this process is live hint: %sps release ends it")
    shell.run("%sps release")
    assert printed(capsys) == [f"{connection.proxy_job_name} is released"]
    assert "<td>closed</td>" in shell.displayed[-1]
    assert "%sps release" not in shell.displayed[-1]


def test_the_table_follows_the_queue(bench: Bench, shell: Shell) -> None:
    bench.script = {"place": False}

    def shows(text: str) -> None:
        eventually(lambda: text in "".join(shell.displayed[-1:]), text)

    def script() -> None:
        shows("<td>start</td>")
        tell = bench.home.tell
        tell(bench.session, "proxy.serving")
        for position in (3, 1):
            tell(bench.session, "tenant.queued", "0 free", position=position, holders="ada: 2")
            shows(f"position {position} in the queue")
        tell(bench.session, "tenant.running", placed=2, wanted=2)

    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        done = beside.submit(script)
        shell.run(f"{CONNECT} --queue-timeout 60")
        done.result()
    bars = [text for text in shell.displayed if "in the queue" in text]
    assert 'max="3" value="0"></progress> position 3' in bars[0]
    assert 'max="3" value="2"></progress> position 1' in bars[-1]
    assert "interrupt the cell to give up" in bars[-1]
    eventually(lambda: "<progress" not in shell.displayed[-1], "a table without a bar")
    shell.run("%sps release")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("%sps nonsense", "UsageError: %sps: No such command 'nonsense'."),
        ("%sps connect --nonsense", "UsageError: %sps: No such option: --nonsense"),
        ("%sps connect 'tpu", "UsageError: %sps connect 'tpu: No closing quotation"),
        ("%sps connect tpuv6e=1", "error: --slices='tpuv6e' is not valid: expected an instance"),
        ("%sps connect --cluster c", "error: project=None is not valid: expected the project"),
        ("%sps release", "error: this notebook has no connection hint: %sps connect starts one"),
        # It runs `sps`.
        pytest.param(
            "%sps status", "error: you have no running service in ", marks=pytest.mark.local
        ),
    ],
)
def test_an_error_is_one_line(
    shell: Shell, capsys: pytest.CaptureFixture[str], line: str, text: str
) -> None:
    shell.fail(line)
    [written, *others] = [line for line in printed(capsys) if line]
    assert written.startswith(text)
    assert not others


def test_a_refusal_is_one_line_and_keeps_its_class(
    bench: Bench, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = SlicesTaken("2 x tpuv6e:2x2 are taken", hint="--queue-timeout waits for them")
    bench.script = {"fail": {"preflight": taken.to_json()}}
    assert isinstance(shell.fail(CONNECT), SlicesTaken)
    assert printed(capsys) == [
        "error: 2 x tpuv6e:2x2 are taken hint: --queue-timeout waits for them"
    ]
    assert one_live.live_owner() is None
    assert "<th>error</th><td>2 x tpuv6e:2x2 are taken</td>" in shell.displayed[-1]


def test_help_names_all_commands(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run("%sps")
    told = "\n".join(printed(capsys))
    assert all(f"\n  {name} " in told for name in sps_magic._COMMANDS)
    shell.run("%sps connect --help")
    told = "\n".join(printed(capsys))
    assert "--queue-timeout SECONDS" in told
    assert "--json-events" not in told
    shown = shell.shell.object_inspect_mime("%sps")["text/plain"]
    assert "%sps connect tpuv6e:2x2=2 --queue-timeout 600" in shown


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("%sps con", ["%sps connect"]),
        ("sps un", ["sps undeploy", "sps uncordon", "sps unreserve"]),
        ("%sps connect --qu", ["%sps connect --queue-timeout"]),
        ("%sps connect v6e-16=2 --no-l", ["%sps connect v6e-16=2 --no-local-devices"]),
        ("%sps nonsense --qu", []),
    ],
)
def test_tab_completes(shell: Shell, text: str, found: list[str]) -> None:
    # (After a dash IPython adds Python's own names.)
    names = [word for word in shell.complete(text) if word.rpartition("-")[2] not in _BUILTINS]
    assert sorted(names) == sorted(found)


def test_tab_completes_names(bench: Bench, shell: Shell) -> None:
    connection = shell.run(CONNECT)
    found = shell.complete("%sps logs isc")
    shell.run("%sps release")
    assert found == [f"%sps logs {connection.proxy_job_name}"]


def test_an_interrupt_ends_the_wait_in_one_line(
    bench: Bench, shell: Shell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_connection: Connection) -> None:
        raise KeyboardInterrupt

    bench.script = {"place": False}
    monkeypatch.setattr(Connection, "_tick", interrupt)
    assert isinstance(shell.fail(CONNECT), KeyboardInterrupt)
    assert printed(capsys) == ["interrupted"]


def test_the_last_line_of_an_interrupted_command_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
import sys, time
try:
    print("one", "two", sep="\\n", file=sys.stderr, flush=True)
    print("runs", flush=True)
    while True:
        time.sleep(0.05)
except KeyboardInterrupt:
    sys.exit("cleaned up")
"""

    @contextlib.contextmanager
    def start(_words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            yield process

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(child_commands, "start_command", start)
        patch.setattr(sys.stdout, "flush", interrupt)
        with pytest.raises(KeyboardInterrupt):
            child_commands.run_command(["status"])
    assert capsys.readouterr().err.splitlines() == ["one", "two", "cleaned up"]
