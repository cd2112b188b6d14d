"""A forked process is what a new one would be."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from harness.deadlines import deadline
from harness.fork_server import client, requests
from shared_pathways_service.runtime import allocator
from tests.harness.comparisons import REPORT, both

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.environ.get("SPS_TEST_FORKS") == "0", reason="without forks"
)


def reported(arguments: list[str], **options: Any) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, *arguments],
        check=False,
        capture_output=True,
        text=True,
        input="hello",
        **options,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def buffered() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("-c", []),
        ("-m", []),
        ("file", []),
        ("-c", ["-P"]),
        ("file", ["-P"]),
        ("-c", ["-u"]),
        ("-c", ["-X", "faulthandler"]),
        ("-c", ["-W", "error::ResourceWarning"]),
    ],
)
@pytest.mark.usefixtures("is_forked")
def test_a_process_sees_the_same(kind: str, flags: list[str], tmp_path: Path) -> None:
    (tmp_path / "reporting.py").write_text(REPORT)
    run = {"-c": ["-c", REPORT], "-m": ["-m", "reporting"], "file": ["reporting.py"]}[kind]
    options = {
        "cwd": tmp_path,
        "env": {**buffered(), "NEW": "ä b"},
        "umask": 0o027,
        "start_new_session": True,
    }
    forked, real = both(lambda: reported([*flags, *run, "a", "b c", ""], **options))
    assert forked == real
    assert forked["parent"] == os.getpid()
    assert forked["imported"][:3] == [False] * 3


@pytest.mark.parametrize("given", [{}, {"TF_CPP_MIN_LOG_LEVEL": "1"}])
@pytest.mark.usefixtures("is_forked")
def test_a_process_is_forked_although_its_parent_has_imported_jax(given: dict[str, str]) -> None:
    # (JAX has set the variable then.)
    code = "import os, jax; print(os.environ['TF_CPP_MIN_LOG_LEVEL'])"
    without = {name: value for name, value in os.environ.items() if not name.startswith("TF_CPP")}
    command, env = [sys.executable, "-c", code], {**without, **given}
    assert subprocess.check_output(command, env=env, text=True) == "1\n"


def spawned(directory: Path, **options: Any) -> dict[str, Any]:
    """Starts the report as an embedded service is started; returns it."""
    out = directory / "out"
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", REPORT],
        buffered(),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(out), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        **options,
    )
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, out.read_text()
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"setsid": True},
        {"setsigmask": (), "setsigdef": (signal.SIGHUP,)},
        {"setsigmask": (signal.SIGUSR2,)},
    ],
)
@pytest.mark.usefixtures("is_forked")
def test_spawned_processes_are_forked(options: dict[str, Any], tmp_path: Path) -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        forked, real = both(lambda: spawned(tmp_path, **options))
    finally:
        signal.signal(signal.SIGHUP, ignored)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    assert forked == real
    assert forked["own_session"] == ("setsid" in options)


@pytest.mark.usefixtures("is_forked")
def test_limits_and_signals_are_the_callers() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
    try:
        forked, real = both(lambda: reported(["-c", REPORT], env=buffered()))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        signal.signal(signal.SIGHUP, ignored)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    assert forked == real
    assert forked["limits"][0] == before[0] - 1
    assert signal.SIGHUP in forked["ignored"]
    assert forked["blocked"] == [signal.SIGUSR1]


@pytest.mark.parametrize(
    "options",
    [
        {"process_group": 0},
        {"env": {**os.environ, "TZ": "Asia/Tokyo"}},
        {"env": {**os.environ, "TMPDIR": "/dev/shm"}},
    ],
    ids=["group", "time zone", "temporary files"],
)
@pytest.mark.usefixtures("is_forked")
def test_a_program_computes_the_same(options: dict[str, Any]) -> None:
    code = """
        import os, tempfile, time
        def annotated(number: int) -> None: pass
        print(os.getpgrp() == os.getpid(), time.localtime(0).tm_hour, time.tzname)
        print(tempfile.gettempdir(), annotated.__annotations__)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    forked, real = both(
        lambda: subprocess.run(command, check=True, stdout=subprocess.PIPE, **options).stdout
    )
    assert forked == real


@pytest.mark.usefixtures("is_forked")
def test_a_process_ends_by_a_signal_that_comes_at_once() -> None:
    for options in ({"start_new_session": True}, {"process_group": 0}):
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        with subprocess.Popen(command, **options) as process:
            try:
                os.killpg(process.pid, signal.SIGTERM)
                assert process.wait(deadline(60.0)) == -signal.SIGTERM
            finally:
                process.kill()


@pytest.mark.usefixtures("is_forked")
def test_a_start_does_not_hang_up_a_group_with_a_stopped_process() -> None:
    # (Of a group without a parent in its session, as a program's that nohup started.)
    code = """
        import os, signal, subprocess, sys
        with subprocess.Popen(["sleep", "600"]) as stopped:
            stopped.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
            subprocess.run([sys.executable, "-c", "pass"], check=True)
            print(stopped.poll())
            stopped.kill()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert done.stdout == "None\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", 0),
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('a reason')", 1),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os; os.abort()", -signal.SIGABRT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("import threading; threading.Timer(0.1, print, ['late']).start()", 0),
        ("import atexit; atexit.register(print, 'at the end')", 0),
        ("left_open = open('/dev/stdout', 'w'); left_open.write('not flushed')", 0),
        ("import os; print('lost'); r, w = os.pipe(); os.close(r); os.dup2(w, 1)", 120),
        ("import jax; assert jax.numpy.ones(2).sum() == 2", 0),
    ],
)
@pytest.mark.usefixtures("is_forked")
def test_a_process_ends_the_same(code: str, expected: int) -> None:
    def run() -> tuple[int, str, str]:
        command, env = [sys.executable, "-c", code], buffered()
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
        return done.returncode, done.stdout, done.stderr.strip().rpartition("\n")[2]

    forked, real = both(run)
    assert forked == real
    assert forked[0] == expected


@pytest.mark.usefixtures("is_forked")
def test_jax_takes_its_options_of_the_environment_when_it_is_imported() -> None:
    code = """
        import os, sys
        os.environ["JAX_NUM_CPU_DEVICES"] = "3"
        assert "jax" not in sys.modules
        import jax
        modules = sorted(name for name in sys.modules if name.split(".")[0] in ("jax", "jaxlib"))
        print(jax.config.jax_enable_x64, jax.config.jax_log_compiles, jax.device_count(), modules)
    """
    env = {**os.environ, "JAX_ENABLE_X64": "1", "JAX_LOG_COMPILES": "true"}

    def run() -> str:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        ).stdout

    forked, real = both(run)
    assert forked == real
    assert forked.startswith("True True 3 [")


@pytest.mark.usefixtures("is_forked")
def test_only_what_is_imported_is_there() -> None:
    code = """
        import sys, json
        import shared_pathways_service
        before = sorted(sys.modules)
        from shared_pathways_service import isc_pathways
        has_servers = hasattr(shared_pathways_service, "servers")
        print(json.dumps([before, sorted(sys.modules), has_servers]))
    """

    def run() -> Any:
        command = [sys.executable, "-c", textwrap.dedent(code)]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)

    forked, real = both(run)

    roots = [{name.split(".")[0] for name in names} for names in (*forked[:2], *real[:2])]
    # (The fork server itself needs some of the standard library.)
    others = [names - sys.stdlib_module_names - {"harness"} for names in roots]
    sysconfig_data = {name for name in others[0] | others[1] if name.startswith("_sysconfig")}
    assert [names - sysconfig_data for names in others[:2]] == others[2:]
    assert not forked[2]


@pytest.mark.usefixtures("is_forked")
def test_a_process_that_kills_its_server_starts_others_as_usual() -> None:
    """As a worker does, which kills all its children when no executor runs."""
    inner = "import sys; print(any(name.startswith('harness') for name in sys.modules))"
    code = f"""
        import subprocess, sys, psutil
        command = [sys.executable, "-c", {inner!r}]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
        (server,) = psutil.Process().children()
        server.kill()
        server.wait()
        for _ in range(2):
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            print(done.stdout.strip())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["True", "False", "False"]


@pytest.mark.usefixtures("is_forked")
def test_a_forked_process_forks_its_own_and_leaves_no_server() -> None:
    inner = "import os; print(os.getppid(), len(os.listdir('/proc/self/task')))"
    code = f"""
        import os, subprocess, sys, psutil
        out = subprocess.run([sys.executable, "-c", {inner!r}], check=True, capture_output=True)
        (server,) = psutil.Process().children()
        print(os.getpid(), server.pid, out.stdout.decode())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True
    )
    pid, server, parent, threads = map(int, done.stdout.split())
    assert (parent, threads) == (pid, 1)
    # (That no server is left, every test checks of its processes.)
    assert server != pid


@pytest.mark.usefixtures("is_forked")
def test_a_process_imports_what_pythonpath_adds(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.customized = sys.orig_argv[-1]")
    (tmp_path / "own_module.py").write_text("VALUE = 3")
    code = "import own_module, sys; print(own_module.VALUE, sys.customized, 'jax' in sys.modules)"
    command = [sys.executable, "-c", code, "word"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for cwd in (Path.cwd(), tmp_path):
        options = {"env": env, "cwd": cwd, "text": True}
        forked, real = both(functools.partial(subprocess.check_output, command, **options))
        assert forked == real == "3 word False\n"


@pytest.mark.usefixtures("is_forked")
def test_a_process_with_an_own_pythonpath_forks_as_well(tmp_path: Path) -> None:
    (tmp_path / "own_module.py").touch()
    # (Only a process that was forked has the fork server's shelf.)
    inner = "import sys; print(type(sys.meta_path[0]).__name__)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.check_output([sys.executable, "-c", code], env=env, text=True)
    assert done == "Shelf\n"


@pytest.mark.parametrize("name", ["numpy.py", "json/__init__.py"])
def test_a_module_in_place_of_another_is_imported(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("OTHER = True")
    module = name.partition(".")[0].partition("/")[0]
    code = f"import {module}; print({module}.OTHER)"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert subprocess.check_output([sys.executable, "-c", code], env=env, text=True) == "True\n"


def test_a_start_after_an_interrupted_one_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_channel: Any) -> None:
        raise KeyboardInterrupt

    (usual,) = client._clients
    client.install(client.ForkClient(usual._connect, usual._ours))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(client, "receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                subprocess.run([sys.executable, "-c", "print('first')"], check=False)
        command = [sys.executable, "-c", "import os; print(os.getpid())"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.communicate()[0] == f"{process.pid}\n"
    finally:
        client.install(usual)


def test_other_ways_to_start_python_are_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: Any) -> None:
        raise AssertionError("it asked the fork server")

    monkeypatch.setattr(client, "send", refuse)
    (executable, code) = (sys.executable, "print('real')")
    for command, options in (
        ([executable, "-I", "-c", code], {}),
        ([executable, "-O", "-c", code], {}),
        ([executable, "-c", code], {"env": {**os.environ, "PYTHONHASHSEED": "1"}}),
        ([executable, "-c", code], {"env": {**os.environ, "PYTHONPATH": "/elsewhere"}}),
        ([executable, "-c", code], {"env": {**os.environ, "GRPC_VERBOSITY": "INFO"}}),
        ([executable, "-c", code], {"preexec_fn": lambda: None}),
        (["/bin/sh", "-c", "echo real"], {}),
    ):
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options)
        assert out.stdout == "real\n"
    with contextlib.suppress(FileNotFoundError):
        subprocess.run([executable, "-c", code], cwd="/does-not-exist", check=False)
        raise AssertionError("it ran in a directory that does not exist")


@pytest.mark.usefixtures("is_forked")
@pytest.mark.parametrize("names_file", [False, True])
def test_aiohttp_has_the_authorities_of_the_environment(names_file: bool, tmp_path: Path) -> None:
    authorities = tmp_path / "authorities.pem"
    authorities.touch()
    environment = {n: v for n, v in os.environ.items() if not n.startswith("SSL_CERT_")}
    if names_file:
        environment |= {"SSL_CERT_FILE": str(authorities), "SSL_CERT_DIR": str(tmp_path)}
    source = """
import json
import aiohttp.connector
context = aiohttp.connector._SSL_CONTEXT_VERIFIED
print(json.dumps(context.cert_store_stats()))
"""
    forked, real = both(functools.partial(reported, ["-c", source], env=environment))
    assert forked == real
    assert names_file is (forked["x509"] == 0)


#: Tells of descriptors which files they are, and reads from the first.
_TELLS = """
import os, sys
given = [int(word) for word in sys.argv[1:]]
for number in given:
    try:
        print(number, os.fstat(number).st_ino)
    except OSError:
        print(number, "is closed")
print(os.read(given[0], 9))
"""


@pytest.mark.usefixtures("is_forked")
def test_a_process_inherits_all_descriptors_that_it_is_not_kept_from() -> None:
    told, tell = os.pipe()
    os.set_inheritable(told, True)
    command = [sys.executable, "-c", _TELLS, str(told), str(tell)]

    def run() -> str:
        os.write(tell, b"a word")
        return subprocess.check_output(command, close_fds=False, text=True)

    forked, real = both(run)
    inode = os.fstat(told).st_ino
    for end in (told, tell):
        os.close(end)
    assert forked == real == f"{told} {inode}\n{tell} is closed\nb'a word'\n"


@pytest.mark.usefixtures("is_forked")
def test_jax_finds_the_plug_ins_of_a_process(tmp_path: Path) -> None:
    (tmp_path / "jax_plugins").mkdir()
    (tmp_path / "jax_plugins" / "mine.py").write_text("def initialize(): print('found')\n")
    command = [sys.executable, "-c", "import jax; print(len(jax.devices('cpu')))"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    forked, real = both(lambda: subprocess.check_output(command, env=env, text=True))
    assert forked == real
    assert forked.startswith("found\n")


#: Whether 64 MiB are part of the heap, or are mapped on their own.
_ALLOCATES = """
import ctypes, pathlib
block = ctypes.create_string_buffer(1 << 26)
maps = pathlib.Path('/proc/self/maps').read_text().splitlines()
heaps = [line.split()[0].split('-') for line in maps if line.endswith('[heap]')]
at = ctypes.addressof(block)
print(any(int(begin, 16) <= at < int(end, 16) for begin, end in heaps))
"""


@pytest.mark.usefixtures("is_forked")
@pytest.mark.parametrize(("variables", "is_in_heap"), [({}, False), (requests.SET_BY_RUN, True)])
def test_a_process_has_the_allocator_that_sps_run_asks_for(
    variables: dict[str, str], is_in_heap: bool
) -> None:
    command = [sys.executable, "-c", _ALLOCATES]
    env = {**os.environ, **variables}
    forked, real = both(lambda: subprocess.check_output(command, env=env, text=True))
    assert forked == real == f"{is_in_heap}\n"


def test_which_variables_a_fork_can_have() -> None:
    def is_plain(*arguments: str, **environment: str) -> bool:
        program = requests.program_of([sys.executable, *arguments], environment)
        assert program is not None
        return requests.is_plain(program, environment, {})

    assert requests.SET_BY_RUN == allocator.ENVIRONMENT
    assert is_plain("-c", "pass", **requests.SET_BY_RUN)
    assert not is_plain("-c", "pass", MALLOC_ARENA_MAX="1")
    # XLA reads it when it is loaded: workers do not load it, what computes does.
    servers = "shared_pathways_service.servers"
    assert is_plain("-m", f"{servers}.worker", TF_CPP_MIN_LOG_LEVEL="0")
    assert not is_plain("-m", f"{servers}.proxy", TF_CPP_MIN_LOG_LEVEL="0")
    assert not is_plain("-c", f"import {servers}.worker", TF_CPP_MIN_LOG_LEVEL="0")
