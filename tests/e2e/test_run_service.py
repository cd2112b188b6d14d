"""`sps run` on a real service: programs that know nothing of it, and what stopping leaves."""

from __future__ import annotations

import json
import signal
import stat
import sys
from pathlib import Path

import pytest

from harness.embedded import DEADLINE_S, embedded, eventually, nothing_left
from harness.foreign import environment_without_us
from harness.programs import status
from tests.e2e.sps_run import run, start

CREDENTIALS = "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"

PROGRAM = """
import importlib.util, os, sys
assert importlib.util.find_spec("shared_pathways_service") is None
import jax, jax.numpy as jnp
slices = [device.slice_index for device in jax.devices()]
print(slices, jnp.arange(4.0).sum(), os.environ["SPS_TOKEN_FILE"], flush=True)
"""


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A Python that does not have the package, and does not look into the directory it runs in."""
    return environment_without_us(tmp_path_factory.mktemp("foreign") / "venv"), "-P", "-c"


@pytest.mark.race
def test_programs_and_their_ends(own_directories: Path, foreign: tuple[str, ...]) -> None:
    events = own_directories / "events.jsonl"
    with embedded(2):
        # A program without this package, its exit code, what is told meanwhile.
        ending = "print(oct(os.stat(os.environ['SPS_TOKEN_FILE']).st_mode & 0o777)); sys.exit(7)"
        code, out, err = run(
            "--slices=tpuv6e:2x2=2",
            f"--json-events={events}",
            "--",
            *foreign,
            PROGRAM + ending,
        )
        assert code == 7, err
        shown, mode = out.splitlines()
        assert shown.startswith("[0, 0, 0, 0, 1, 1, 1, 1] 6.0 ")
        assert mode == oct(stat.S_IRUSR | stat.S_IWUSR)
        assert not Path(shown.rpartition(" ")[2]).exists()
        kinds = [json.loads(line)["kind"] for line in events.read_text().splitlines()]
        assert kinds.count("slice.placed") == 2
        assert nothing_left()

        # The allocator of a program, where its environment says nothing of it.
        shows = "print(*(os.environ.get('MALLOC_' + n) for n in ('ARENA_MAX', 'MMAP_MAX_')))"
        for options, shown in (((), "7 0\n"), (("--no-tune-allocator",), "7 None\n")):
            words = (*options, "--slices=tpuv6e:2x2=1", *foreign, "import os; " + shows)
            assert run(*words, MALLOC_ARENA_MAX="7")[:2] == (0, shown)

        # Plaintext between client and proxy, whatever the caller's environment has.
        shows = f"import os; print(os.environ['{CREDENTIALS}'])"
        for variables in ({}, {CREDENTIALS: "true"}, {CREDENTIALS: "1"}):
            words = ("--slices=tpuv6e:2x2=1", *foreign, shows)
            assert run(*words, **variables)[:2] == (0, "true\n"), variables

        # This machine's CPU beside the slices, or not.
        beside = """
import jax
try:
    print(jax.devices("cpu")[0].platform, jax.devices()[0].platform, jax.default_backend())
except RuntimeError as error:
    print(error)
"""
        for options, shown in (
            ((), "cpu proxy proxy\n"),
            (("--no-local-devices",), "Unknown backend cpu. Available backends are ['proxy']\n"),
        ):
            code, out, err = run(*options, "--slices=tpuv6e:2x2=1", *foreign, beside)
            assert (code, out) == (0, shown), err

        # A signal in the midst of it.
        with start("--slices=tpuv6e:2x2=1", *foreign, PROGRAM + "sys.stdin.read()") as process:
            assert process.stdout
            assert process.stdout.readline().startswith("[0, 0, 0, 0] 6.0 ")
            assert [tenant["state"] for tenant in status()["tenants"]] == ["running"]
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 143, err
        assert nothing_left()


def test_programs_that_replace_themselves(tmp_path: Path) -> None:
    script, program = tmp_path / "train.sh", tmp_path / "train.py"
    script.write_text('#!/bin/sh\nexec "$@"\n')
    script.chmod(0o755)
    # As programs do that restart themselves, with their slices in use.
    program.write_text(
        "import os, sys, jax, jax.numpy as jnp\n"
        "print(os.getpid(), jax.default_backend(), jnp.arange(4.0).sum(), flush=True)\n"
        "if sys.argv[1:] != ['again']:\n"
        "    os.execv(sys.executable, [sys.executable, __file__, 'again'])\n"
        "sys.exit(7)\n"
    )
    with embedded(1):
        words = ("--slices=tpuv6e:2x2=1", "--", str(script), sys.executable, str(program))
        code, out, err = run(*words)
        assert code == 7, err
        first, again = out.splitlines()
        assert first == again
        assert first.endswith(" proxy 6.0")
        assert "slices:" not in err
        assert nothing_left()


def test_slices_that_are_taken(foreign: tuple[str, ...]) -> None:
    hold = "import sys; print('holds', flush=True); sys.stdin.read()"
    with embedded(1), start("--slices=tpuv6e:2x2=1", *foreign, hold) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "holds\n"
        [tenant] = status()["tenants"]
        code, out, err = run("--slices=tpuv6e:2x2=1", "echo", "ran")
        assert (code, out) == (125, "")
        assert "error: " in err
        assert tenant["user"] in err

        # Stopped while it waits in the queue, one by each signal.
        for number in (signal.SIGINT, signal.SIGTERM):
            waiting = ("--slices=tpuv6e:2x2=1", "--queue-timeout=600", "echo", "ran")
            with start(*waiting) as process:
                eventually(lambda: status()["queue"], "it to wait in the queue")
                process.send_signal(number)
                out, err = process.communicate(timeout=DEADLINE_S)
            assert (process.returncode, out) == (128 + number, ""), err
            assert "Traceback" not in err
            assert not status()["queue"]

        holder.kill()  # even so its proxy goes, and the slice is free
        holder.communicate()
        eventually(nothing_left, "the slice to be free")


def test_own_failures_before_anything_is_started(own_directories: Path) -> None:
    for words, code, says in [
        (("--slices=tpuv6e:2y2=1", "true"), 125, "--slices"),
        (("--slices=tpuv6e:2x2=0", "true"), 125, "--slices"),
        (("--timeout=-1", "true"), 125, "timeout"),
        (("--elastic-slices=2", "--slices=tpuv6e:2x2=2", "true"), 125, "elastic_slices"),
        (("no-such-command",), 127, "no-such-command"),
        ((str(own_directories),), 126, str(own_directories)),
        (("--no-such-option", "true"), 2, "--no-such-option"),
        ((), 2, "COMMAND"),
    ]:
        ended, out, err = run(*words)
        assert (ended, out) == (code, ""), err
        assert says in err
        assert "Traceback" not in err
    assert not any(own_directories.rglob("*.sock")), "a service was started"
