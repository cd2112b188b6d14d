"""Ctrl-C while a value is read from a proxy that does not answer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
import pytest

from harness.signals import suspend
from tests.jax_client.conftest import DEADLINE_S, PRELUDE, run_proxy, start_program

PROGRAM = """
import faulthandler, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import jax
attachment = attach(ProxyTarget(address=sys.argv[1]), timeout=deadline(60))
double = jax.jit(lambda x: x * 2)
value = double(double(jax.device_put(np.ones(16, np.float32))))
scalar = value[3]
faulthandler.dump_traceback_later(deadline(80), exit=True)

def interrupt_once():
    main = threading.main_thread().ident
    def is_reading():
        frame = sys._current_frames()[main]
        while frame is not None and frame.f_code.co_name != "fetched":
            frame = frame.f_back
        return frame is not None
    wait_until("the main thread to read", is_reading)
    os.kill(os.getpid(), signal.SIGINT)

print("attached", flush=True)
sys.stdin.readline()
threading.Thread(target=interrupt_once).start()
try:
    READ
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
# The interrupt is over: the next reads wait for the proxy, and get the value.
assert np.asarray(value).tolist() == [4.0] * 16
assert READ is not None
print("read", flush=True)
attachment.detach()
"""


@pytest.mark.race
@pytest.mark.parametrize("read", ["np.asarray(value)", "float(scalar)", "memoryview(value)"])
def test_one_interrupt_ends_the_wait(own_directories: Path, read: str) -> None:
    # (numpy asks for the buffer protocol first, and drops every error of it.)
    with run_proxy(own_directories, "p", slices=1) as proxy:
        program = start_program(PRELUDE + PROGRAM.replace("READ", read), proxy.address)
        try:
            process = psutil.Process(proxy.pid)
            expect(program, "attached")
            suspend(process.pid)
            tell(program)
            expect(program, "interrupted")
            process.resume()
            tell(program)
            expect(program, "read")
            assert program.wait(DEADLINE_S) == 0
        finally:
            program.kill()
            program.communicate()


def expect(program: subprocess.Popen[str], word: str) -> None:
    assert program.stdout
    assert program.stdout.readline() == f"{word}\n"


def tell(program: subprocess.Popen[str]) -> None:
    assert program.stdin
    program.stdin.write("go on\n")
    program.stdin.flush()
