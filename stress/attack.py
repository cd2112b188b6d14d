"""How much a tenant's program slows down while another tenant attacks the shared servers.

    python -m stress.attack [--engine distributed] [--slices 1] [--seconds 2] [--rounds 3]
        [--only ATTACK ...] [--out result.json]

An embedded service with two tenants. The attacker, its proxy, the resource manager, and the
supervisor, which follows that, share one processor; the victim's program, agent and proxy have the
other: as in a cluster, where the resource manager shares no processor with a proxy. With
`--engine distributed` each proxy has an executor for each of its slices, on its processor. (If
everything shared all processors, the system's scheduler would divide them, and not the limits of a
server.)

The victim dispatches small programs to its slices in turn, at the highest rate that a proxy
reaches. Each attack of `shared_pathways_service.testing.attacks` is made on the resource manager,
with a tenant's token, on the attacker's own proxy, and on its executor, as often as it can. The
victim's rate, which is per second of its processor that others do not use, during the attack is
divided by the rate right before and right after, and by that beside an attacker that only computes:
on a machine whose processors are one core, or have other work, that costs the victim something,
too. Attacks on the victim's own proxy and executor by a client without a token are measured
likewise, but without an aim, as they use the victim's processor. Ends with 1 if an aim is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from harness.deadlines import deadline
from harness.own_service import ROOT, own_service
from harness.results import exit_code, measured, write_result
from shared_pathways_service.constants import ENGINES
from shared_pathways_service.testing.attacks import ATTACKS, Attack
from stress.attack_controls import Computing
from stress.attacked_servers import AIMED, EXECUTORS, MANAGER, OWN, VICTIMS, target_of
from stress.growth import Held

#: The least share of its undisturbed rate that the victim must retain.
AIM = 0.9
KIND = "tpuv6e:2x2"
#: Programs that are dispatched before the last one is waited for.
_BLOCK = 50
#: Connections of an attacker.
SIZE = 100


def victim(slices: int) -> None:
    """Connects; for each line with a number of seconds, says how many programs it ran in them."""
    from shared_pathways_service import isc_pathways

    with isc_pathways.connect(expected_tpu_instances={KIND: slices}) as connection:
        import jax
        import jax.numpy as jnp

        step = jax.jit(lambda x: x + 1)
        # (The first device of each slice.)
        devices = {device.slice_index: device for device in reversed(jax.devices())}.values()
        arrays = [step(jax.device_put(jnp.zeros(()), device)) for device in devices]
        jax.block_until_ready(arrays)
        _say(name=connection.proxy_job_name, address=_address())
        for line in sys.stdin:
            count, begin = 0, time.perf_counter()
            while time.perf_counter() - begin < float(line):
                for turn in range(_BLOCK):
                    arrays[turn % slices] = step(arrays[turn % slices])
                jax.block_until_ready(arrays)
                count += _BLOCK
            _say(programs=count)
        # They are of no use once the connection is over, which JAX would say.
        del arrays


def attacker(slices: int) -> None:
    """Connects; for each line that names a server and an attack, makes it until the next line."""
    from shared_pathways_service import isc_pathways

    with isc_pathways.connect(expected_tpu_instances={KIND: slices}) as connection:
        import jax

        # (Executors serve once this is done.)
        jax.block_until_ready([jax.device_put(0.0, device) for device in jax.devices()])
        _say(name=connection.proxy_job_name, address=_address())
        known: tuple[type[Attack], ...] = (Computing, *ATTACKS)
        kinds = {kind.name: kind for kind in known}
        for line in sys.stdin:
            order = json.loads(line)
            target = target_of(order["server"], order["address"])
            with kinds[order["kind"]](target, SIZE) as attack:
                _say(begun=True)
                _press(attack)
            _say(presses=attack.made, ended=attack.ended, refused=attack.refused)


def _press(attack: Attack) -> None:
    """Repeats an attack until the next line arrives."""
    over = threading.Event()

    def wait() -> None:
        sys.stdin.readline()
        over.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not over.is_set():
        attack.press()
        # An attack that only holds would otherwise be one of an endless loop of ours.
        over.wait(0.001)
    waiting.join()


def _say(**data: Any) -> None:
    print(json.dumps(data), flush=True)


def _address() -> str:
    return os.environ["JAX_BACKEND_TARGET"].partition("://")[2]


class _Child:
    """A process of this module's, spoken to in lines."""

    def __init__(self, role: str, slices: int, processor: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stress.attack", f"--role={role}", f"--slices={slices}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        # Before it starts its agent, which inherits it.
        _pin(self.process.pid, processor)
        self.greeting = self.receive()

    def say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a program ended with {self.process.wait()}")
        message: dict[str, Any] = json.loads(line)
        return message

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(deadline(60.0))


def _status() -> dict[str, Any]:
    command = [sys.executable, "-m", "shared_pathways_service.cli", "status", "--json"]
    done = subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    status: dict[str, Any] = json.loads(done.stdout)
    return status


def _pin(pid: int, processor: int) -> None:
    """Gives a process one processor: every thread there is, and so those to come."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        # (Some end meanwhile.)
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), {processor})


@contextlib.contextmanager
def _tenants(
    engine: str, slices: int
) -> Iterator[tuple[_Victim, _Child, dict[str, str], dict[str, int]]]:
    """Runs a service and two tenants, each on its processor.

    Args:
      engine: Of the service.
      slices: Of each tenant.

    Yields:
      The victim, the attacker, and each server's address and process.
    """
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        raise SystemExit("two processors are needed: one for the attacker, one for the victim")
    theirs, mine = processors[:2]
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(own_service(f"{KIND}={2 * slices}", 0, ["--engine", engine]))
        harmed = _Child("victim", slices, mine)
        stack.callback(harmed.end)
        harming = _Child("attacker", slices, theirs)
        stack.callback(harming.end)
        socket = Path(os.environ["SPS_RUNTIME_DIR"]) / "rm.sock"
        addresses = {
            MANAGER: f"unix:{socket}",
            OWN: harming.greeting["address"],
            VICTIMS: harmed.greeting["address"],
        }
        status = _status()
        processes = status["processes"]
        names = {harming.greeting["name"]: OWN, harmed.greeting["name"]: VICTIMS}
        pids = {names[p["name"]]: p["pid"] for p in processes if p.get("name") in names}
        pids[MANAGER] = next(p["pid"] for p in processes if p["role"] == "rm")
        for pid in {service, *(process["pid"] for process in processes)}:
            _pin(pid, mine if pid == pids[VICTIMS] else theirs)
        servers = [pids[VICTIMS]]
        for executor in status["executors"]:
            proxy = names[executor["tenant"]]
            name = EXECUTORS[proxy]
            # (With several slices, one executor of each tenant is attacked.)
            addresses[name], pids[name] = executor["address"], executor["pid"]
            _pin(executor["pid"], mine if proxy == VICTIMS else theirs)
            if proxy == VICTIMS:
                servers.append(executor["pid"])
        yield _Victim(harmed, servers, mine), harming, addresses, pids


class _Victim:
    """The victim's program, and the processor that it and its servers have.

    Args:
      program: It.
      servers: The ids of its proxy and its executors.
      processor: The number of the processor.
    """

    def __init__(self, program: _Child, servers: Sequence[int], processor: int) -> None:
        self._program = program
        root = psutil.Process(program.process.pid)
        self._processes = [root, *root.children(recursive=True), *map(psutil.Process, servers)]
        self._processor = processor

    def rate(self, seconds: float) -> float:
        """Returns how many programs it runs in a second of its processor.

        (Not in one of the clock, as programs of others may use the processor. Time in which it is
        idle, because the victim waits, counts.)
        """
        before = self._own_s()
        self._program.say(str(seconds))
        programs: int = self._program.receive()["programs"]
        return programs / (self._own_s() - before)

    def _own_s(self) -> float:
        idle: float = psutil.cpu_times(percpu=True)[self._processor].idle
        return idle + sum(sum(process.cpu_times()[:2]) for process in self._processes)


def _attacked(
    harmed: _Victim, harming: _Child, order: dict[str, str], seconds: float, pid: int
) -> tuple[float, Held]:
    """Returns the victim's rate during an attack, and what the attacked process held then."""
    harming.say(json.dumps(order))
    harming.receive()
    rate = harmed.rate(seconds)
    held = Held.of(pid)
    harming.say("")
    harming.receive()
    return rate, held


def measure(
    engine: str, slices: int, seconds: float, rounds: int, kinds: Sequence[type[Attack]]
) -> tuple[dict[str, dict[str, dict[str, float]]], dict[str, list[float]]]:
    """Makes these attacks on every server.

    Returns:
      The results by server and attack, and the shares of all rounds.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    repeats: dict[str, list[float]] = {}
    with _tenants(engine, slices) as (harmed, harming, addresses, pids):
        harmed.rate(seconds)
        for server in (*AIMED, VICTIMS, EXECUTORS[VICTIMS]):
            if server not in addresses:
                continue
            found[server] = {}
            target = {"server": server, "address": addresses[server]}
            for kind in kinds:
                amid, beside, calm, held = [], [], [harmed.rate(seconds)], []
                before = Held.of(pids[server])
                for _ in range(rounds):
                    control = {**target, "kind": Computing.name}
                    beside.append(_attacked(harmed, harming, control, seconds, pids[server])[0])
                    order = {**target, "kind": kind.name}
                    rate, now = _attacked(harmed, harming, order, seconds, pids[server])
                    amid.append(rate)
                    held.append(now)
                    calm.append(harmed.rate(seconds))
                shares = [2 * rate / sum(calm[i : i + 2]) for i, rate in enumerate(amid)]
                repeats[f"{kind.name} on {server}"] = shares
                of_control = [rate / other for rate, other in zip(amid, beside, strict=True)]
                found[server][kind.name] = {
                    "share": round(statistics.median(shares), 3),
                    "worst": round(min(shares), 3),
                    "share_of_computing": round(statistics.median(of_control), 3),
                    "programs_per_s": round(statistics.median(amid)),
                    "grown_mb": round(max(one.resident_mb for one in held) - before.resident_mb, 1),
                    "descriptors": max(one.descriptors for one in held),
                    "descriptors_after": Held.of(pids[server]).descriptors,
                }
                print(f"{server:24}{kind.name:28}{found[server][kind.name]}", flush=True)
    return found, repeats


def main() -> int:
    """Parses the arguments, measures, prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0])
    parser.add_argument("--slices", type=int, default=1, help="of each tenant")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    names = [kind.name for kind in ATTACKS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="ATTACK")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--role", choices=("victim", "attacker"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        {"victim": victim, "attacker": attacker}[arguments.role](arguments.slices)
        return 0
    return run_measured(arguments)


@measured()
def run_measured(arguments: argparse.Namespace) -> int:
    """Measures as asked, prints and writes; returns the exit code."""
    kinds = [kind for kind in ATTACKS if kind.name in arguments.only]
    found, repeats = measure(
        arguments.engine, arguments.slices, arguments.seconds, arguments.rounds, kinds
    )
    least = min(one["share"] for server in AIMED for one in found.get(server, {}).values())
    fair = min(
        one["share_of_computing"] for server in AIMED for one in found.get(server, {}).values()
    )
    print(f"least share of its rate that is left to the victim: {least:.3f} (aim {AIM})")
    print(f"the same, beside an attacker that only computes: {fair:.3f}")
    result = {
        "engine": arguments.engine,
        "slices_of_each_tenant": arguments.slices,
        "seconds": arguments.seconds,
        "rounds": arguments.rounds,
        "connections": SIZE,
        "aim": AIM,
        # Of a machine that does other work, shares say little.
        "load_average": os.getloadavg(),
        "least_share": least,
        "least_share_of_computing": fair,
        "attacks": found,
    }
    write_result("attack", result, arguments.out, repeats)
    return exit_code(
        f"{name} on {server}: a share of {one['share']:.3f} (aim: {AIM})"
        for server in AIMED
        for name, one in found.get(server, {}).items()
        if one["share"] < AIM
    )


if __name__ == "__main__":
    sys.exit(main())
