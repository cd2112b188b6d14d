"""What connect() can be asked for, on a real service."""

from __future__ import annotations

import json
from typing import Any

from harness.embedded import embedded, eventually, journal, nothing_left
from harness.openmetrics import scrape, value
from harness.programs import program, sps

#: A child that never heard of us finds the proxy, and its token, by the environment.
CHILD = "import jax; print(len(jax.devices()), float(jax.numpy.arange(4.0).sum()))"

SOURCE = f"""
import subprocess
import jax, jax.numpy as jnp
import numpy as np

# ready first, placed later; a TCP port; this machine's devices beside the proxy's
with isc_pathways.connect(expected_tpu_instances={{"tpuv6e:2x2": 1}}, wait="ready", local_port=0,
                          proxy_job_name="mine") as c:
    c.wait_until_placed(60)
    assert c.address.startswith("grpc://127.0.0.1:"), c.address
    assert jax.devices("cpu")[0].platform == "cpu"
    here = jax.device_put(np.ones(4), jax.devices("cpu")[0])
    there = jax.device_put(here, c.devices[0])
    say("local", sum=float((there + 1).sum()), name=c.proxy_job_name, lines=len(c.logs(5)),
        html=c._repr_html_())
    wait_for("go on")
    try:
        isc_pathways.connect().start()
    except errors.InvalidRequestError as error:
        say("second", field=error.field, text=str(error))

# as a notebook has it: no block, and a callback that fails
def hear(event): raise ValueError("mine")
c = isc_pathways.connect(on_event=hear).start()
from shared_pathways_service.jax_client import standalone
from shared_pathways_service.runtime.settings import Settings
# (Installed, the package brings the plug-in along by its entry point.)
paths = [str(standalone.place(Settings.load().cache_dir)), os.environ.get("PYTHONPATH", "")]
child = subprocess.run([sys.executable, "-c", {CHILD!r}], capture_output=True, text=True,
                       env=dict(os.environ, PYTHONPATH=os.pathsep.join(paths)))
say("child", out=child.stdout, code=child.returncode, err=child.stderr[-2000:])
c.close(); c.close()
assert "JAX_BACKEND_TARGET" not in os.environ

# forked children that leave the block in their own way end nothing of the parent's
import warnings; warnings.simplefilter("ignore")
with isc_pathways.connect() as c:
    for end in ("pass", "raise", "close"):
        if (child := os.fork()) == 0:
            try:
                if end == "raise": raise ValueError(end)
                if end == "close": c.close()
            except ValueError as error:
                c.__exit__(ValueError, error, None)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    say("forked", value=float(jnp.arange(4.0).sum()), alive=c.status().agent_alive)
"""


def printed(*arguments: str) -> Any:
    return json.loads(sps(*arguments, "--json").stdout)


def test_what_can_be_asked_for() -> None:
    measured = {"SPS_AGENT_METRICS_PORT": "0"}
    with embedded(2), program(SOURCE, env=measured) as client:
        local = client.expect("local")
        assert (local["sum"], local["name"]) == (8.0, "mine")
        assert local["lines"] == 5
        assert "mine" in local["html"]

        eventually(lambda: journal()[0].state == "serve", "its state in the journal")
        [listed] = printed("list")
        assert (listed["name"], listed["home"], listed["state"]) == ("mine", "embedded", "serve")
        assert listed["slices"] == {"tpuv6e:2x2": 1}
        assert listed["pid"] == client.pid
        assert listed["namespace"] is None
        assert "tpuv6e:2x2=1" in sps("list").stdout

        told = printed("status", "mine")
        assert [tenant["name"] for tenant in told["tenants"]] == ["mine"]
        assert [item["virtual_index"] for item in told["slices"]] == [0]
        assert [process["role"] for process in told["processes"]] == ["proxy"]
        assert told["service"]["home"] == "embedded"
        assert told["queue"] == []
        [agent] = told["agents"]
        assert agent["name"] == "mine"
        served = scrape(agent["metrics"])
        assert value(served, "sps_agent_info", name="mine", home="embedded") == 1
        assert value(served, "sps_agent_slices", state="placed") == 1
        assert "mine[0]" in sps("status").stdout
        unknown = sps("status", "yours", check=False)
        assert unknown.returncode == 3
        assert "mine" in unknown.stderr

        client.tell("go on")
        second = client.expect("second")
        assert second["field"] == "connect"
        assert "mine" in second["text"]
        child = client.expect("child")
        assert (child["code"], child["out"]) == (0, "4 6.0\n"), child
        forked = client.expect("forked")
        assert (forked["value"], forked["alive"]) == (6.0, True)
        assert client.wait() == 0
        eventually(nothing_left, "all to be gone")


def test_without_a_service() -> None:
    assert printed("list") == []
    assert sps("list").stdout == "no connections\n"
    none = sps("status", "--json", check=False)
    assert none.returncode == 3
    assert none.stderr.startswith("error: ")
