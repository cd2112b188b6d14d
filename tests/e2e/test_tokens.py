"""Where the tokens of a whole service are while it runs, and after: in their files alone."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path

import psutil
import pytest

from harness.deadlines import wait_until
from harness.embedded import nothing_left
from harness.programs import program, service, sps, sps_json
from tests.conftest import MARK

pytestmark = pytest.mark.real_starts

#: Connects, works, and has an error of each kind that names what it was refused.
WORKING = """
import numpy as np
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}) as connection:
    import jax
    assert np.asarray(jax.device_put(np.ones(4)) + 1).tolist() == [2.0] * 4
    from shared_pathways_service.jax_client.refusal import reason_of
    from shared_pathways_service.jax_client.target import ProxyTarget
    address = os.environ["JAX_BACKEND_TARGET"].partition("://")[2]
    for token in ("a wrong one", None):
        say("refused", error=str(reason_of(ProxyTarget(address=address, token=token), 60)))
    try:
        isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 2}).start()
    except errors.SharedPathwaysError as error:
        say("failed", error=str(error), all=json.dumps(error.to_json()))
    say("serving")
    wait_for("leave")
"""


def token_files() -> list[Path]:
    roots = [Path(os.environ[f"SPS_{name}_DIR"]) for name in ("RUNTIME", "STATE")]
    return [path for root in roots for path in root.rglob("*.token")]


def readable() -> dict[str, str]:
    """All that could give a token away: every other file, and what `ps` shows of each process."""
    found = {}
    root = Path(os.environ["SPS_STATE_DIR"]).parent
    for path in root.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and path.suffix != ".token":
                found[str(path)] = path.read_bytes().decode(errors="replace")
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found[f"arguments of {process.pid}"] = " ".join(process.cmdline())
            environment = process.environ()
            if environment.get(MARK) == os.environ[MARK]:
                found[f"variables of {process.pid}"] = "\n".join(environment.values())
    return found


def test_tokens_are_in_their_files_and_nowhere_else() -> None:
    with service("tpuv6e:2x2=1", 0):
        with program(WORKING) as running:
            for _ in range(2):
                running.expect("refused")
            said = json.dumps(running.expect("failed"))
            running.expect("serving")
            files = token_files()
            names = {path.name for path in files}
            # The service's, the tenants', the proxy's, and that of the session's children.
            assert {"service.token", "tenants.token"} < names
            assert len(names) >= 4
            assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
            tokens = {path.read_text().strip() for path in files}
            assert len(tokens) == len(files) - 1  # the session's is the proxy's
            assert min(map(len, tokens)) >= 43
            places = readable()
            variables = [name for name in places if name.startswith("variables of ")]
            # The service, its resource manager, worker and proxy, the program and its agent.
            assert len(variables) >= 6
            told = sps_json("status")
            places["status"] = json.dumps(told)
            places["events"] = sps("explain", told["proxies"][0]["name"]).stdout
            places["errors"] = said
            assert not _which_have(tokens, places)
            running.tell("leave")
            assert running.wait() == 0
        wait_until("the proxy's end", nothing_left)
    assert not _which_have(tokens, readable())
    assert not token_files()


def _which_have(tokens: set[str], places: dict[str, str]) -> list[str]:
    return [name for name, text in places.items() if any(token in text for token in tokens)]
