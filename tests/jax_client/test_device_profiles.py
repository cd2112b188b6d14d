"""jax.profiler on a proxy profiles the proxy as well, and is as before without one."""

from __future__ import annotations

from pathlib import Path

from tests.jax_client.conftest import PRELUDE, Proxies, run_program

BEGIN = (
    PRELUDE
    + """
import logging
import jax, jax.numpy as jnp
directory = sys.argv[2]
def files():
    return sorted(path.name for path in __import__("pathlib").Path(directory).rglob("*.xplane.pb"))
def trace(directory=directory):
    with jax.profiler.trace(directory):
        jax.jit(lambda x: x @ x)(jnp.ones((8, 8))).block_until_ready()
target = ProxyTarget(address=sys.argv[1], token=sys.argv[3] or None)
attachment = attach(target, timeout=deadline(60))
"""
)


def test_a_trace_has_the_proxy_while_it_is_used(proxies: Proxies, own_directories: Path) -> None:
    run_program(
        BEGIN
        + """
trace()
both = files()
assert len(both) == 2 and both[0] == "sps-proxy.xplane.pb", both
# (JAX names folders by the second.)
trace(directory + "/second")
assert len(files()) == 4, files()
attachment.detach()
trace(directory + "/third")
assert len(files()) == 5, files()
# No thread or stream is left.
wait_until("threads to end", lambda: not [
    t for t in threading.enumerate() if t.name == "sps-profile"])
""",
        proxies[0].address,
        str(own_directories / "trace"),
        "",
    )


def test_functions_and_options(proxies: Proxies, own_directories: Path) -> None:
    run_program(
        BEGIN
        + """
options = jax.profiler.ProfileOptions()
options.python_tracer_level = 0
jax.profiler.start_trace(directory, profiler_options=options)
try:
    jax.profiler.start_trace(directory)
except RuntimeError as error:
    assert "Only one profile" in str(error), error
else:
    raise AssertionError("two profiles")
jax.profiler.stop_trace()
assert files()[0] == "sps-proxy.xplane.pb", files()
try:
    jax.profiler.stop_trace()
except RuntimeError as error:
    assert "No profile started" in str(error), error
else:
    raise AssertionError("nothing was started")
attachment.detach()
""",
        proxies[1].address,
        str(own_directories / "trace"),
        "a-token-of-this-tenant",
    )


def test_a_second_program_is_refused(proxies: Proxies, own_directories: Path) -> None:
    run_program(
        BEGIN
        + """
from shared_pathways_service.jax_client.plugin.device_profile import DeviceProfile
other = DeviceProfile(sys.argv[1], None)
try:
    trace()
except RuntimeError as error:
    assert "one profile at a time" in str(error), error
else:
    raise AssertionError("two profiles of a proxy")
assert files() == [], files()
other.close()
# Nothing of the refused one is left.
def again():
    try:
        trace()
    except RuntimeError as error:
        assert "one profile at a time" in str(error), error
        return False
    return True
wait_until("the other one to end", again)
assert len(files()) == 2, files()
attachment.detach()
""",
        proxies[0].address,
        str(own_directories / "trace"),
        "",
    )


def test_a_proxy_that_ends_leaves_the_trace_of_this_process(
    proxies: Proxies, own_directories: Path
) -> None:
    run_program(
        BEGIN
        + """
from shared_pathways_service.jax_client.plugin import traced_proxies
warnings = []
logging.getLogger(traced_proxies.__name__).addHandler(
    type("Handler", (logging.Handler,), {"emit": lambda _, record: warnings.append(record)})())
jax.profiler.start_trace(directory)
traced_proxies._running[1].args[0]._call.cancel()
jax.profiler.stop_trace()
assert len(files()) == 1, files()
assert "has only this process" in warnings[0].getMessage(), warnings
attachment.detach()
""",
        proxies[0].address,
        str(own_directories / "trace"),
        "",
    )


def test_a_killed_program_leaves_no_profile(proxies: Proxies, own_directories: Path) -> None:
    for _ in range(2):
        run_program(
            BEGIN
            + """
def start():
    try:
        jax.profiler.start_trace(directory)
    except RuntimeError as error:
        assert "one profile at a time" in str(error), error
        return False
    return True
wait_until("the profile of the killed one to end", start)
os._exit(0)
""",
            proxies[0].address,
            str(own_directories / "trace"),
            "",
        )
