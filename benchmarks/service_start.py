"""Start of the embedded service: seconds until it serves, is ready, places a tenant, and ends."""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from pathlib import Path

from harness.own_service import own_directories
from harness.results import measured, write_result
from harness.session_requests import session_request
from shared_pathways_service.homes.base import ProxyHandle, ignore_event
from shared_pathways_service.homes.embedded.discovery import find, find_or_start
from shared_pathways_service.homes.embedded.home import EmbeddedHome
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.runtime.processes import identity_of
from shared_pathways_service.runtime.settings import Settings

#: Seconds for another proxy to become warm.
PAUSE_S = 4.0


async def placed(home: EmbeddedHome, handle: ProxyHandle) -> dict[str, float]:
    """Follows a proxy until it is placed; returns the times of what came."""
    times = {}
    async for event in home.follow(handle):
        times[event.kind] = time.perf_counter()
        if event.kind == "tenant.running":
            return times
    raise SystemExit(f"the proxy ended: {times}")


async def one_round() -> dict[str, float]:
    began = time.perf_counter()
    found: dict[str, float] = {}
    link = await find_or_start(Settings.load(), {"tpuv6e:2x2": 2}, who="a benchmark")
    found["serving"] = time.perf_counter() - began
    home = EmbeddedHome()
    first = session_request("first", *["tpuv6e:2x2"] * 2)
    await home.preflight(first, ignore_event)
    found["ready"] = time.perf_counter() - began
    handle = await home.create_proxy(first, session="first", owner=identity_of())
    times = await placed(home, handle)
    found["proxy serves"] = times["proxy.serving"] - began
    found["placed"] = times["tenant.running"] - began
    await home.delete_proxy(handle.name, handle.uid, "first")
    await home.close()
    await asyncio.sleep(PAUSE_S)

    began = time.perf_counter()
    home = EmbeddedHome()
    second = session_request("second", *["tpuv6e:2x2"] * 2)
    await home.preflight(second, ignore_event)
    found["again"] = time.perf_counter() - began
    times = await placed(
        home, await home.create_proxy(second, session="second", owner=identity_of())
    )
    found["second proxy"] = times["tenant.running"] - began
    await home.close()

    began = time.perf_counter()
    await link.supervisor.Shutdown(pb.ShutdownRequest(), metadata=link.metadata)
    await asyncio.to_thread(os.waitpid, link.started_pid, 0)
    found["ended"] = time.perf_counter() - began
    await link.close()
    assert await find(Settings.load()) is None
    return found


@measured()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    rounds = []
    for _ in range(options.rounds):
        with own_directories():
            rounds.append(asyncio.run(one_round()))
    seconds = {name: [found[name] for found in rounds] for name in rounds[0]}
    print(f"{'':<16}{'median':>9}{'worst':>9}   s")
    for name, values in seconds.items():
        print(f"{name:<16}{statistics.median(values):>9.2f}{max(values):>9.2f}")
    write_result("service_start", seconds, options.out, seconds)


if __name__ == "__main__":
    main()
