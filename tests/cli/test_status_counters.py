"""`sps status` shows what each connection's proxy counts; the team compiles once."""

from __future__ import annotations

import json
import signal

from harness.embedded import embedded
from harness.openmetrics import text_to_families
from harness.programs import DEADLINE_S, program, sps, sps_running
from harness.promql import check_queries
from harness.web_page import answer_of
from shared_pathways_service.runtime.settings import Settings

COMPUTING = """
import numpy as np
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}) as connection:
    import jax, jax.numpy as jnp
    result = np.asarray(jax.jit(lambda x: jnp.tanh(x) @ x.T)(jnp.ones((16, 16))))
    say("computed", name=connection.proxy_job_name, result=result.tobytes().hex())
    wait_for("leave")
say("left")
"""


def test_two_connections_as_json_and_as_openmetrics() -> None:
    with embedded(2), program(COMPUTING) as first:
        computed = [first.expect("computed")]
        # Another line of another program: where it was written does not matter.
        with program("# moved\n" + COMPUTING) as second:
            computed.append(second.expect("computed"))
            names = [item["name"] for item in computed]
            proxies = json.loads(sps("status", "--json").stdout)["proxies"]
            counters = {proxy["name"]: proxy["counters"] for proxy in proxies}
            assert sorted(counters) == sorted(names)
            one, two = (counters[name] for name in names)
            assert one["sps_proxy_compilations_total"] > 0
            assert one["sps_proxy_compile_cache_hits_total"] == 0
            assert (
                one["sps_proxy_compilations_total"] == one["sps_proxy_compile_cache_stored_total"]
            )
            assert two["sps_proxy_compilations_total"] == 0
            assert (
                two["sps_proxy_compile_cache_hits_total"]
                == one["sps_proxy_compile_cache_stored_total"]
            )
            assert computed[0]["result"] == computed[1]["result"]
            assert one["sps_proxy_open_sessions"] == two["sps_proxy_open_sessions"] == 1
            assert two["sps_proxy_dispatches_total"] > 0
            # One connection, and all of them.
            [proxy] = json.loads(sps("status", names[1], "--json").stdout)["proxies"]
            assert proxy["name"] == names[1]
            for words, shown in (((names[0],), {names[0]}), ((), set(names))):
                text = sps("status", *words, "--openmetrics").stdout
                found = {family.name: family for family in text_to_families(text)}
                samples = found["sps_proxy_compilations"].samples
                assert {s.labels["connection"] for s in samples} == shown
                memory = found["sps_proxy_device_memory_bytes"]
                assert {(s.labels["connection"], s.labels["device"]) for s in memory.samples} == {
                    (name, str(device)) for name in shown for device in range(4)
                }
            check_queries(found.values(), "sps_proxy")
            _check_page(names[1])
            second.tell("leave")
            second.expect("left")
        first.tell("leave")
        first.expect("left")
    cache = Settings.load().cache_dir / "compiled"
    assert {path.suffix for path in cache.iterdir()} == {".xla"}


def _check_page(name: str) -> None:
    """Checks the connection's page of `sps ui`: the same counters, and the log."""
    with sps_running("ui", "--no-browser", "--json") as command:
        assert command.stdout
        url = json.loads(command.stdout.readline())["url"]
        told = answer_of(url, "/api/connection", name=name)
        assert (told["own"]["state"], told["own"]["link"]) == ("serve", None)
        assert told["proxy"] == {"value": None, "error": None, "hint": None}
        shown = told["counters"]["value"]
        assert shown["name"] == name
        assert shown["counters"]["sps_proxy_open_sessions"] == 1
        assert shown["limits"]["max_handles"] > 0
        assert answer_of(url, "/api/log", name=name)["lines"]
        command.send_signal(signal.SIGINT)
        command.communicate(timeout=DEADLINE_S)


def test_without_proxies_there_is_nothing_to_tell() -> None:
    with embedded(1):
        assert json.loads(sps("status", "--json").stdout)["proxies"] == []
        assert sps("status", "--openmetrics").stdout == "# EOF\n"
        done = sps("status", "--openmetrics", "--json", check=False)
        assert done.returncode == 2
        assert "--openmetrics" in done.stderr
        done = sps("status", "isc-proxy-nobody", "--openmetrics", check=False)
        assert done.returncode == 3
