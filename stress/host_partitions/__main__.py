"""Partitions around the hosts of a tenant that computes on several of them.

    python -m stress.host_partitions [--rounds 30] [--seed 1] [--out F]

Real servers run in network namespaces, each on a host of its own: a resource manager, three workers
of one slice each, which start executors, and the proxy of a tenant with two slices. A round cuts a
link, and checks what it costs, from a client of the proxy:

- ``hosts``: between the hosts of both slices. A program over them fails within the time for which
  hosts wait for each other, a copy between them fails, and nobody is lost: programs and arrays of
  each slice go on. Once the link is healed, the next program over both runs.
- ``proxy``: between the proxy and a host. Its slice is lost.
- ``manager``: between the resource manager and a host. Its slice is lost.

When a slice is lost, its arrays fail with DATA_LOSS, the other slice's are bit-identical, and the
tenant gets the third slice for it without a new connection. The resource manager's history must say
so once. Needs Linux and root; changes nothing outside of the namespaces.
"""

from __future__ import annotations

import collections
import random
import sys
from pathlib import Path
from typing import Any

from stress.host_partitions.rounds import Round
from stress.host_partitions.service import COLLECTIVE_S, EACH_S, HUNG_S, running_service
from stress.runs_apart import main_apart

_KINDS = ("hosts", "proxy", "manager")


def run(rounds: int, seed: int, scratch: Path) -> dict[str, Any]:
    """Runs the rounds, each kind in turn; returns the seconds that each took, by kind.

    Raises:
      PartitionError: A partition had another result than it must.
    """
    draw = random.Random(seed)
    seconds: dict[str, dict[str, list[float]]] = {
        kind: collections.defaultdict(list) for kind in _KINDS
    }
    with running_service(seed, scratch) as service:
        for number in range(rounds):
            kind = _KINDS[number % len(_KINDS)]
            one = Round(service, draw)
            if kind == "hosts":
                found = one.between_hosts()
            else:
                found = one.around_a_host("proxy" if kind == "proxy" else "rm")
            for name, value in found.items():
                seconds[kind][name].append(round(value, 2))
            words = ", ".join(f"{name} {value:.1f}" for name, value in found.items())
            print(f"round {number + 1}, {kind}: {words}", flush=True)
    return {
        "rounds": rounds,
        "seed": seed,
        "collective_timeout_s": COLLECTIVE_S,
        "hung_after_s": HUNG_S,
        "seconds": seconds,
    }


def _samples(result: dict[str, Any]) -> dict[str, list[float]]:
    return {
        f"{kind} {name}": values
        for kind, by_name in result["seconds"].items()
        for name, values in by_name.items()
    }


if __name__ == "__main__":
    sys.exit(
        main_apart(
            "host_partitions", __doc__, run, _samples, unit="rounds", count=30, each_s=EACH_S
        )
    )
