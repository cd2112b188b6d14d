"""`sps run` of programs that choose another platform, or none, after it has started them."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from harness.deadlines import deadline
from harness.embedded import embedded, eventually, nothing_left
from harness.foreign import environment_without_us
from harness.processes import REPOSITORY
from harness.programs import program
from shared_pathways_service.cli.display.run_summary import warning
from shared_pathways_service.jax_client.plugin import run_notes
from shared_pathways_service.jax_client.plugin.plugin import TOKEN_VARIABLE, TRANSPORT
from shared_pathways_service.jax_client.plugin.run_notes import NOTES_VARIABLE
from tests.e2e.sps_run import run

PROGRAM = """
import os, sys
CHOOSE
import jax, jax.numpy as jnp
CONFIGURE
print(jax.default_backend(), float(jnp.arange(4.0).sum()), flush=True)
"""


def choosing(choose: str = "", configure: str = "") -> tuple[str, ...]:
    source = PROGRAM.replace("CHOOSE", choose).replace("CONFIGURE", configure)
    return "--slices=tpuv6e:2x2=1", "--", sys.executable, "-c", source


def test_a_program_that_runs_elsewhere_is_reported() -> None:
    by_setting = choosing(configure="jax.config.update('jax_platforms', 'cpu')")
    by_variable = choosing(choose="os.environ['JAX_PLATFORMS'] = 'cpu'")
    with embedded(1):
        for words in (by_setting, by_variable):
            code, out, err = run(*words)
            assert (code, out) == (0, "cpu 6.0\n"), err
            assert err.count("runs on this machine, not on the slices") == 1, err
            assert "did not use its slices: it ran on this machine (jax_platforms='cpu')" in err

        # JAX's own choice is what `sps run` has set.
        for words in (
            choosing(),
            choosing(configure="jax.config.update('jax_platforms', None)"),
            choosing(choose="os.environ['JAX_PLATFORMS'] = ''"),
        ):
            code, out, err = run(*words)
            assert (code, out) == (0, "proxy 6.0\n"), err
            assert "slices:" not in err, err

        code, out, err = run("--slices=tpuv6e:2x2=1", "echo", "ran")
        assert (code, out) == (0, "ran\n"), err
        assert "did not use its slices: none of its processes used JAX" in err
        eventually(nothing_left, "all proxies to be gone")


#: Looks for devices, and says how long that took.
ASKS = """
import sys, time
import jax
began = time.monotonic()
try:
    print("found", jax.devices()[0].platform, end=" ")
except RuntimeError as error:
    sys.stderr.write(f"failed: {error}\\n")
    sys.exit(3)
finally:
    print(f"after {time.monotonic() - began:.2f} s", flush=True)
"""
#: Seconds for an error, however slow the machine is to start Python and to import JAX.
AT_ONCE_S = deadline(5.0)
#: Starts programs that look for devices, while it is connected itself.
CHILDREN = """
import subprocess
def ask(who, python, **changed):
    kept = {name: value for name, value in {**os.environ, **changed}.items() if value is not None}
    words = [python, "-c", os.environ["ASKS"]]
    done = subprocess.run(words, env=kept, capture_output=True, text=True)
    say(who, code=done.returncode, out=done.stdout, err=done.stderr)
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}):
    ask("foreign", os.environ["FOREIGN"])
    ask("without a token", sys.executable, SPS_TOKEN_FILE=None)
"""
DROPS = f"{TOKEN_VARIABLE} is not set"
LACKS = f"transport '{TRANSPORT}' not found"
#: The last words of `sps run`, for both.
ADVICE = (f"JAX misses the transport {TRANSPORT!r}", "install the package there", "pass on JAX_*")


def keeping(*names: str) -> list[str]:
    """Returns a launcher that passes on these variables only, beside those of a login."""
    kept = [f'{name}="${name}"' for name in ("PATH", "HOME", *names)]
    return ["sh", "-c", f'exec env -i {" ".join(kept)} "$@"', "sh"]


def seconds_of(out: str) -> float:
    return float(out.rpartition("after ")[2].removesuffix(" s\n"))


def asked_by(*words: str) -> tuple[int, str, str]:
    return run("--slices=tpuv6e:2x2=1", "--", *words, "-c", ASKS)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has JAX, but not this package."""
    return environment_without_us(tmp_path_factory.mktemp("foreign") / "venv")


@pytest.fixture
def service() -> Iterator[None]:
    with embedded(1):
        yield


@pytest.mark.usefixtures("service")
def test_launchers_that_drop_nothing_that_a_python_needs(foreign: str) -> None:
    variables = ("JAX_PLATFORMS", "JAX_BACKEND_TARGET", TOKEN_VARIABLE, NOTES_VARIABLE)
    for words in (
        [foreign],  # by PYTHONPATH
        [sys.executable, "-I"],  # the package is installed there
        ["env", "--unset=PYTHONPATH", sys.executable],
        [*keeping(*variables), sys.executable],
        [*keeping(*variables, "PYTHONPATH"), foreign],
    ):
        code, out, err = asked_by(*words)
        assert (code, out.split(" after ")[0]) == (0, "found proxy"), (words, err)
        assert "slices:" not in err, words


@pytest.mark.usefixtures("service")
@pytest.mark.skipif(jax.version.__version_info__ < (0, 12), reason="JAX 0.12 has the transports")
def test_a_python_without_the_plugin_fails_at_once(foreign: str) -> None:
    for words in (
        [foreign, "-E"],
        [foreign, "-I"],
        ["env", "--unset=PYTHONPATH", foreign],
        [*keeping("JAX_PLATFORMS", "JAX_BACKEND_TARGET", TOKEN_VARIABLE), foreign],
    ):
        code, out, err = asked_by(*words)
        assert code == 3, (words, out, err)
        assert seconds_of(out) < AT_ONCE_S, words
        assert LACKS in err, words
        assert all(words in err for words in ADVICE), err


@pytest.mark.usefixtures("service")
def test_a_launcher_that_drops_the_token_makes_a_program_fail_at_once(foreign: str) -> None:
    variables = ("JAX_PLATFORMS", "JAX_BACKEND_TARGET")
    for words in (
        [*keeping(*variables), sys.executable],
        [*keeping(*variables, "PYTHONPATH"), foreign],
        ["env", f"--unset={TOKEN_VARIABLE}", sys.executable],
    ):
        code, out, err = asked_by(*words)
        assert code == 3, (words, out, err)
        assert seconds_of(out) < AT_ONCE_S, words
        assert DROPS in err, err
        assert "sbatch: --export" in err, words
        assert all(words in err for words in ADVICE), err


@pytest.mark.usefixtures("service")
def test_a_program_below_a_launcher_that_drops_all_runs_on_this_machine(foreign: str) -> None:
    for words in (
        [*keeping(), sys.executable],
        [*keeping(), foreign],
        # Without a platform, JAX chooses; with no proxy to be reached, the CPU.
        [*keeping("JAX_BACKEND_TARGET"), sys.executable],
    ):
        code, out, err = asked_by(*words)
        assert (code, out.split(" after ")[0]) == (0, "found cpu"), (words, err)
        assert seconds_of(out) < AT_ONCE_S, words
        assert "did not use its slices: none of its processes used JAX" in err, words
        assert all(words in err for words in ADVICE), err


@pytest.mark.usefixtures("service")
def test_a_python_without_jax_says_so(tmp_path: Path) -> None:
    venv.EnvBuilder(symlinks=True, with_pip=False).create(tmp_path / "bare")
    others = subprocess.run(
        ["bash", "-c", '. scripts/_environment.sh ""; pythons_here "${supported_pythons[@]}"'],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert others
    # (`-S` leaves out the packages that are installed.)
    for words in (
        [sys.executable, "-S"],
        [str(tmp_path / "bare" / "bin" / "python")],
        *([o, "-S"] for o in others),
    ):
        code, _, err = asked_by(*words)
        assert code == 1, (words, err)
        assert "No module named 'jax'" in err, words
        assert all(words in err for words in ADVICE), err


@pytest.mark.usefixtures("service")
def test_a_child_of_connect_fails_at_once_without_the_plugin_or_the_token(foreign: str) -> None:
    with program(CHILDREN, env={"FOREIGN": foreign, "ASKS": ASKS}) as running:
        for who, said in (("foreign", LACKS), ("without a token", DROPS)):
            child = running.expect(who)
            assert child["code"] == 3, child
            assert seconds_of(child["out"]) < AT_ONCE_S
            assert said in child["err"]
        assert running.wait() == 0


def test_what_processes_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = tmp_path / "notes"
    # (Others may have removed it: then it is not known whether the program used its slices.)
    assert run_notes.read(notes) is None
    assert not warning(notes, is_ours=True)
    notes.touch()
    assert run_notes.read(notes) == run_notes.Usage()
    assert warning(notes, is_ours=True)
    assert not warning(notes, is_ours=False)  # others than the plug-in connect to Google's
    monkeypatch.setenv(run_notes.NOTES_VARIABLE, str(notes))
    monkeypatch.setenv(run_notes.PLATFORMS_VARIABLE, "proxy,cpu")
    for _ in range(2):
        run_notes.note_elsewhere("jax_platforms='cpu'")
    assert capsys.readouterr().err.count("jax_platforms='cpu'") == 1
    assert "jax_platforms='cpu'" in warning(notes, is_ours=False)
    run_notes.note_use()
    assert run_notes.read(notes) == run_notes.Usage(used=True, elsewhere=("jax_platforms='cpu'",))
    assert not warning(notes, is_ours=True)
    monkeypatch.delenv(run_notes.NOTES_VARIABLE)
    run_notes.note_elsewhere("jax_platforms='cuda'")
    assert not capsys.readouterr().err


class Delayed(str):
    """A record of a process that another one overtakes between its look and its writing."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        run_notes._add("used 1")
        return str.__eq__(self, other)


def test_processes_that_record_at_the_same_time_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    notes.write_text("elsewhere 2 a\n")
    monkeypatch.setenv(run_notes.NOTES_VARIABLE, str(notes))
    assert run_notes._add(Delayed("elsewhere 3 b"))
    assert run_notes.read(notes) == run_notes.Usage(used=True, elsewhere=("a", "b"))
