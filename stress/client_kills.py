"""kill -9 of clients at random moments on the testbed: what is left of them ten seconds later.

    python -m stress.client_kills [--kills 100] [--clients 4] [--seed 1] [--out result.json]

Each client connects to a service in the cluster, computes and closes. The moment is uniform over
the time that this takes (the median of as many undisturbed clients, run concurrently), from
connect() to the end of the program; for a client that ended before, another moment is drawn. The
check looks for Jobs, pods, Secrets, the pods' processes and the resource manager's tenants, and on
the client's machine for agents, journal entries and sockets. "Clean after" is when the last of them
was gone. Ends with 1 if something was left.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import itertools
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import psutil

from harness.deadlines import deadline
from harness.own_service import ROOT, own_directories
from harness.results import exit_code, measured, write_result
from harness.testbed.clients import deployed
from harness.testbed.kills import tenants
from shared_pathways_service.agent.journal import Journal
from shared_pathways_service.manifests.names import APP, LABEL_APP
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.testing.testbed import Namespace, Testbed, new_namespace
from shared_pathways_service.testing.testbed.deployed_service import DeployedService

#: Seconds after a kill by which nothing may be left, and between two checks.
LATER_S = 10.0
LOOK_S = 0.5
#: Seconds that a client may take, and between two looks.
LIMIT_S = deadline(120.0)
GLANCE_S = 0.02
#: The user's own: the control plane is built there already, or is worth keeping.
CACHE_DIR = Settings.load().cache_dir

CLIENT = """
import os
from shared_pathways_service import isc_pathways
print("connect", flush=True)
with isc_pathways.connect(
    context="testbed", namespace=os.environ["BENCH_NAMESPACE"],
    proxy_job_name=os.environ["BENCH_NAME"], expected_tpu_instances={"tpuv6e:2x2": 1},
    queue_timeout=120, on_event=lambda event: print(event.kind, flush=True),
):
    import jax.numpy as jnp
    print("computing", flush=True)
    for _ in range(300):
        float(jnp.arange(8.0).sum())
    print("closing", flush=True)
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kill:
    """One kill.

    Attributes:
      name: The client's, and its proxy's.
      moment_s: Seconds after the client's call of connect().
      at: The last message of the client.
      killed: When, on the monotonic clock.
      left_here: Leftovers on the client's machine ten seconds later.
    """

    name: str
    moment_s: float
    at: str
    killed: float
    left_here: list[str]


class Watcher:
    """Looks at the cluster now and then: what of which client was seen there, and when last."""

    def __init__(self, service: DeployedService) -> None:
        self._service = service
        #: Client: what of it was seen, and when last.
        self.seen: dict[str, dict[str, float]] = collections.defaultdict(dict)

    def look(self) -> None:
        """Looks once."""
        namespace = self._service.namespace
        mine = {"labelSelector": f"{LABEL_APP}={APP}"}
        found = [
            (what, item["metadata"]["name"])
            for what, resource in (("job", "batch/v1/jobs"), ("pod", "pods"), ("secret", "secrets"))
            for item in namespace.items(resource, **mine)
        ]
        found += [("process", pod) for pod in namespace.processes()]
        found += [("tenant", name) for name in tenants(self._service)]
        now = time.monotonic()
        for what, name in found:
            client = "-".join(name.split("-")[:2])
            self.seen[client][what] = now

    def left_of(self, kill: Kill) -> list[str]:
        """Returns the leftovers in the cluster at the end of the time."""
        late = kill.killed + LATER_S
        return [what for what, last in self.seen[kill.name].items() if last > late]

    def clean_after(self, kill: Kill) -> float:
        """Returns the seconds from the kill to the last sight of anything."""
        return max(0.0, max(self.seen[kill.name].values(), default=0.0) - kill.killed)


class Clients:
    """Starts clients, each with its own directories."""

    def __init__(self, namespace: Namespace, scratch: Path) -> None:
        self._namespace = namespace
        self._kubeconfig = str(namespace.kubeconfig_of("tenant"))
        self._scratch = scratch

    @contextlib.contextmanager
    def run(self, name: str) -> Iterator[tuple[subprocess.Popen[bytes], Path, Mapping[str, str]]]:
        """Runs a client for the length of the block, its words in a file."""
        root = self._scratch / name
        root.mkdir()
        environment = {
            **os.environ,
            **{f"SPS_{kind}_DIR": str(root / kind[0].lower()) for kind in ("RUNTIME", "STATE")},
            "KUBECONFIG": self._kubeconfig,
            "BENCH_NAMESPACE": self._namespace.name,
            "BENCH_NAME": name,
        }
        words = root / "words"
        with words.open("wb") as out, (root / "errors").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-c", CLIENT],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                env=environment,
                cwd=ROOT,
            )
            try:
                _wait_for_words(words)
                yield process, words, environment
            finally:
                process.kill()
                process.wait()

    def whole(self, name: str) -> float:
        """Returns the duration of an undisturbed client in seconds."""
        with self.run(name) as (process, words, _):
            began = time.monotonic()
            code = process.wait(LIMIT_S)
            assert code == 0, words.with_name("errors").read_text()
            return time.monotonic() - began

    def kill(self, name: str, moment_s: float) -> Kill | None:
        """Kills a client at a moment; None: it had ended before."""
        with self.run(name) as (process, words, environment):
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(moment_s)
                assert code == 0, words.with_name("errors").read_text()
                return None
            process.kill()
            killed = time.monotonic()
            process.wait()
        time.sleep(LATER_S)
        return Kill(
            name=name,
            moment_s=moment_s,
            at=words.read_text().split()[-1],
            killed=killed,
            left_here=_left_here(environment),
        )


def _wait_for_words(words: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not words.stat().st_size:
        assert time.monotonic() < deadline, words.with_name("errors").read_text()
        time.sleep(GLANCE_S)


def _left_here(environment: Mapping[str, str]) -> list[str]:
    """Returns the leftovers of a client on this machine: processes, journal entries, sockets."""
    state = environment["SPS_STATE_DIR"]
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("SPS_STATE_DIR") == state:
                left.append("agent")
    settings = Settings.load(environ=environment)
    if (journal := settings.state_dir / "journal").exists():
        left += ["journal"] * len(Journal(journal).entries())
        left += ["token"] * len(list(journal.glob("*.token")))
    return left + ["socket" for path in settings.runtime_dir.rglob("*") if path.is_socket()]


def measure(kills: int, clients: int, seed: int) -> dict[str, Any]:
    """Returns what came of each kill."""
    with (
        own_directories() as scratch,
        Testbed.start(cache_dir=CACHE_DIR, report=print) as testbed,
        new_namespace(testbed) as namespace,
    ):
        watcher = Watcher(deployed(namespace, clients))
        starter = Clients(namespace, scratch)
        with ThreadPoolExecutor(clients) as pool:
            names = [f"whole-{number}" for number in range(clients)]
            whole = statistics.median(pool.map(starter.whole, names))
            done: list[Kill] = []

            def work(number: int) -> None:
                draw = random.Random(f"{seed}-{number}")
                for again in itertools.count():
                    kill = starter.kill(f"kill{number}-{again}", draw.uniform(0, whole))
                    if kill is not None:
                        done.append(kill)
                        return

            waiting = {pool.submit(work, number) for number in range(kills)}
            while waiting:
                watcher.look()
                over, waiting = wait(waiting, timeout=LOOK_S)
                for future in over:
                    future.result()
        watcher.look()
        left = {kill.name: kill.left_here + watcher.left_of(kill) for kill in done}
        return {
            "kills": len(done),
            "clients": clients,
            "seed": seed,
            "whole_s": whole,
            "orphans": {name: what for name, what in left.items() if what},
            "clean_s": [watcher.clean_after(kill) for kill in done],
            "moments": [{"after_s": kill.moment_s, "at": kill.at} for kill in done],
        }


def show(result: Mapping[str, Any]) -> None:
    at = collections.Counter(moment["at"] for moment in result["moments"])
    print(f"{'the client had said last':<28}{'kills':>8}")
    for word, count in at.most_common():
        print(f"{word:<28}{count:>8}")
    clean = result["clean_s"]
    print(f"{'in all':<28}{result['kills']:>8}")
    p90 = statistics.quantiles(clean, n=10)[-1]
    cells = (statistics.median(clean), p90, max(clean))
    print("clean after, s: median {:.1f}, p90 {:.1f}, worst {:.1f}".format(*cells))
    print(f"orphans {LATER_S:.0f} s later: {len(result['orphans'])} (aim: 0)")
    for name, what in result["orphans"].items():
        print(f"  {name}: {', '.join(what)}")


@measured()
def main() -> int:
    """Parses the arguments, kills, prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--clients", type=int, default=4, help="at the same time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    result = measure(options.kills, options.clients, options.seed)
    show(result)
    write_result("client_kills", result, options.out, {"clean_s": result["clean_s"]})
    return exit_code(f"left of {name}: {', '.join(of)}" for name, of in result["orphans"].items())


if __name__ == "__main__":
    sys.exit(main())
