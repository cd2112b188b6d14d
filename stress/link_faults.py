"""Faults of the link between a client and its proxy on the testbed, for long: is a session lost?

    python -m stress.link_faults [--only cuts server packets sleep] [--images ours googles]
        [--cuts 1000] [--seed 1] [--out result.json]

A client computes with exact integers, and checks every result against numpy: it compiles, uploads,
fetches and idles, with several steps in flight. Meanwhile

- ``cuts``: all its connections to the API server are reset, at random moments;
- ``server``: the API server is killed, and comes back after 60 s;
- ``packets``: its network drops every packet for five minutes;
- ``sleep``: it and its agent are stopped for 20 minutes, as by a closed laptop's lid, and their
  connections break meanwhile.

`keep_for` is half an hour.

Each must end with no session lost, and every bit right. After each fault its result is added to
what the file has.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.own_service import own_directories
from harness.results import exit_code, measured, write_result
from harness.testbed.clients import KIND, nothing_left
from harness.testbed.link_clients import LinkClient, link_client
from harness.testbed.link_faults import (
    api_server_away,
    asleep,
    cut_at_random,
    packets_dropped,
    survived,
)
from harness.testbed.network_namespaces import network_namespace, why_unavailable
from harness.testbed.plugin import IMAGES
from harness.testbed.ways import Way, open_way
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.testing.testbed import (
    Namespace,
    Testbed,
    deploy_service,
    new_namespace,
)

#: Seconds of each fault.
SERVER_S, PACKETS_S, SLEEP_S = 60.0, 300.0, 1200.0
KEEP_FOR = "30m"
#: The user's own: the control plane is built there already, or is worth keeping.
CACHE_DIR = Settings.load().cache_dir

#: Commits a fault; returns figures of its own.
Fault = Callable[[LinkClient, Way], dict[str, Any]]


def cuts(namespace: Namespace, options: argparse.Namespace) -> dict[str, Any]:
    def fault(client: LinkClient, way: Way) -> dict[str, Any]:
        cut_at_random(client, way, options.cuts, random.Random(options.seed))
        return {"cuts": options.cuts, "seed": options.seed}

    with (
        open_way(namespace) as way,
        link_client(namespace, way, keep_for=KEEP_FOR, seed=options.seed) as client,
    ):
        return _watched(client, way, fault)


def server(namespace: Namespace, options: argparse.Namespace) -> dict[str, Any]:
    def fault(client: LinkClient, _way: Way) -> dict[str, Any]:
        client.ask_for_step()
        api_server_away(namespace.testbed, options.seconds or SERVER_S)
        client.stepped()
        return {"away_s": options.seconds or SERVER_S}

    with (
        open_way(namespace) as way,
        link_client(namespace, way, keep_for=KEEP_FOR, seed=options.seed) as client,
    ):
        return _watched(client, way, fault)


def packets(namespace: Namespace, options: argparse.Namespace) -> dict[str, Any]:
    if reason := why_unavailable():
        return {"skipped": reason}
    with (
        network_namespace() as network,
        open_way(namespace, network.listener) as way,
        link_client(
            namespace, way, keep_for=KEEP_FOR, seed=options.seed, prefix=network.prefix
        ) as client,
    ):

        def fault(client: LinkClient, _way: Way) -> dict[str, Any]:
            client.ask_for_step()
            seconds = options.seconds or PACKETS_S
            dropped = packets_dropped(network, seconds)
            client.stepped()
            return {"dropped_s": seconds, "dropped_packets": dropped}

        return _watched(client, way, fault)


def sleep(namespace: Namespace, options: argparse.Namespace) -> dict[str, Any]:
    def fault(client: LinkClient, way: Way) -> dict[str, Any]:
        seconds = options.seconds or SLEEP_S
        with asleep(client, way):
            time.sleep(seconds)
        return {"asleep_s": seconds}

    with (
        open_way(namespace) as way,
        link_client(namespace, way, keep_for=KEEP_FOR, seed=options.seed) as client,
    ):
        return _watched(client, way, fault)


FAULTS = {each.__name__: each for each in (cuts, server, packets, sleep)}


def _watched(client: LinkClient, way: Way, fault: Fault) -> dict[str, Any]:
    """Commits a fault; returns the client's own figures. The client raises if its session ends."""
    before = client.step()
    began = time.monotonic()
    own = fault(client, way)
    client.step()
    took_s = round(time.monotonic() - began, 1)
    outcome = survived(before, client.stop())
    return {**own, "took_s": took_s, "sessions_lost": 0, "bit_identical": True, **outcome.to_json()}


@contextlib.contextmanager
def _service(testbed: Testbed, images: str) -> Iterator[Namespace]:
    with new_namespace(testbed) as namespace:
        namespace.add_nodes({KIND: 1}, cpu_nodes=0)
        deploy_service(namespace, {KIND: 1}, image=IMAGES[images])
        yield namespace


def measure(options: argparse.Namespace) -> list[str]:
    """Commits the faults; returns those that clients did not survive."""
    failed = []
    with own_directories(), Testbed.start(cache_dir=CACHE_DIR, report=print) as testbed:
        for images in options.images:
            with _service(testbed, images) as namespace:
                for name in options.only:
                    try:
                        outcome = FAULTS[name](namespace, options)
                        nothing_left(namespace)
                    except AssertionError as error:
                        notes = getattr(error, "__notes__", [])
                        outcome = {"failed": "\n".join([str(error), *notes])}
                        failed.append(f"{images}: {name}")
                    print(f"{images}: {name}: {outcome}", flush=True)
                    _keep(images, name, outcome, options.out)
    return failed


def _keep(images: str, name: str, outcome: Mapping[str, Any], out: Path | None) -> None:
    earlier = json.loads(out.read_text()) if out and out.exists() else None
    result = earlier["result"] if earlier else {}
    result.setdefault(images, {})[name] = outcome
    write_result("link_faults", result, out, earlier=earlier)


@measured()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--images", nargs="+", choices=IMAGES, default=["ours"])
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--seconds", type=float, help="of a fault, instead of its own length")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    return exit_code(measure(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
