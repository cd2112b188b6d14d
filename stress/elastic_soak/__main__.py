"""Training through disruptions at random moments, all of them in one run of one manager.

    python -m stress.elastic_soak [--disruptions 200] [--seed 1] [--out result.json]
                                      [--simulated] [--kinds single,double,…]

Through the proxy of an embedded service of three slices and no spare; with --simulated on CPU
devices that are harmed in name only. Snapshots to the client every 3 steps, checkpoints every 20.

| kind | what happens |
|---|---|
| single | a slice is killed |
| double | two are, at once |
| flap | one is, and again each time that training is on it again |
| hang | one does not answer for a while (a service: its workers are suspended) |
| recovery | a second one is killed while training recovers from the loss of a first |
| save | one is killed while a checkpoint is being saved |
| lie | an error that names no slice, with one down |
| proxy | the proxy is killed |

The next one follows a random time after training is on all slices again. "Recovered" is when a step
was completed after the error that reported the loss; "whole" is when five were, on all slices. The
data and results of the run are compared with an undisturbed run of as many steps.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import faulthandler
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.deadlines import deadline
from harness.own_service import own_service
from harness.results import exit_code, measured, write_result
from stress.growth import Growth, Held, growth

if TYPE_CHECKING:
    from stress.elastic_soak.disruptions import Disruption, Survival
    from stress.elastic_soak.run import Soaked
    from stress.elastic_soak.worlds import World

KINDS = ("single", "double", "flap", "hang", "recovery", "save", "lie", "proxy")
SLICES = 3
#: Events of a recovery at which a second slice is killed.
MOMENTS = ("elastic.error", "elastic.retry", "elastic.attempt.started", "elastic.restored")
#: Seconds for which a slice is down or hangs: simulated, and of a service, whose resource manager
#: declares a worker hung after this time without a heartbeat.
HUNG_AFTER_S = 2.0
DOWN_FOR_S = {True: (0.05, 0.6), False: (0.0, 1.0)}
HANG_S = {True: (1.5, 2.5), False: (HUNG_AFTER_S + 0.5, HUNG_AFTER_S + 2.0)}
#: Seconds from when training is on all slices again to the next disruption.
AFTER_S = (0.0, 1.0)
#: What this process may hold more in the last quarter than in the first.
ALLOWED = Held(threads=8, descriptors=4, resident_mb=36.0)
#: The share of the disruptions after which it is looked for growth, and the fewest after that.
WARM_UP, LEAST_SAMPLES = 0.1, 20
#: Seconds without progress of a disruption after which the process ends, with its stacks.
STUCK_S = deadline(900.0)


def draw_disruptions(
    count: int, seed: int, kinds: Sequence[str], *, simulated: bool
) -> list[Disruption]:
    """Returns a number of disruptions, equally of all kinds, in random order."""
    from stress.elastic_soak.disruptions import Disruption

    draw = random.Random(seed)
    drawn = [kinds[number % len(kinds)] for number in range(count)]
    draw.shuffle(drawn)
    disruptions = []
    for kind in drawn:
        slices = tuple(draw.sample(range(SLICES), SLICES))
        if kind == "flap":
            slices = slices[:1] * draw.randint(2, 3)
        elif kind in {"double", "recovery"}:
            slices = slices[:2]
        elif kind == "proxy":
            slices = ()
        else:
            slices = slices[:1]
        down_for = draw.uniform(*(HANG_S if kind == "hang" else DOWN_FOR_S)[simulated])
        disruptions.append(
            Disruption(
                kind=kind,
                slices=slices,
                after_s=draw.uniform(*AFTER_S),
                down_for=down_for,
                delay_s=draw.uniform(0.0, 0.2),
                moment=draw.choice(MOMENTS),
            )
        )
    return disruptions


@contextlib.contextmanager
def world(*, simulated: bool) -> Iterator[World]:
    """Gives this process its slices."""
    if simulated:
        from harness.elastic.cpu_devices import use_cpu_devices

        use_cpu_devices(12)
        from stress.elastic_soak.worlds import Simulated

        with Simulated() as slices:
            yield slices
        return
    # jaxlib warns each time that a slice is asked which is down, for each of its devices.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from shared_pathways_service import isc_pathways

    flags = ["--hung-after", str(HUNG_AFTER_S), "--beat-interval", "0.2"]
    with (
        own_service(f"tpuv6e:2x2={SLICES}", 0, flags),
        isc_pathways.connect(
            expected_tpu_instances={"tpuv6e:2x2": SLICES}, queue_timeout=300
        ) as connection,
    ):
        from stress.elastic_soak.worlds import Embedded

        with Embedded(connection) as embedded:
            yield embedded


class Record:
    """The record of a run, written after each disruption so that little is lost."""

    def __init__(self, asked: argparse.Namespace, wanted: int) -> None:
        self._asked = asked
        self._wanted = wanted
        self.survivals: list[Survival] = []
        self.held: list[Held] = []

    def add(self, survival: Survival, held: Held) -> None:
        """A disruption is over."""
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
        self.survivals.append(survival)
        self.held.append(held)
        took = f"recovered {survival.recovered_s:.2f} s, whole {survival.whole_s:.2f} s"
        print(
            f"{len(self.survivals)} {survival.kind} {survival.slices}: {took}; {held}", flush=True
        )
        self.write(None)

    def write(self, soaked: Soaked | None) -> Mapping[str, Any]:
        """Writes the record; returns it."""
        result = self._result(soaked)
        name = "elastic_soak_simulated" if self._asked.simulated else "elastic_soak"
        write_result(name, result, self._asked.out, self._seconds())
        return result

    def _seconds(self) -> dict[str, list[float]]:
        """Returns the seconds of all disruptions."""
        recovered = [one.recovered_s for one in self.survivals if one.recovered_s is not None]
        whole = [one.whole_s for one in self.survivals if one.whole_s is not None]
        return {"recovered_s": recovered, "whole_s": whole}

    def grown(self) -> dict[str, Growth]:
        """Returns the growth of this process; empty for too few samples."""
        warm = self.held[int(len(self.held) * WARM_UP) :]
        if len(warm) < LEAST_SAMPLES:
            return {}
        return {
            field.name: growth([getattr(h, field.name) for h in warm], getattr(ALLOWED, field.name))
            for field in dataclasses.fields(Held)
        }

    def _result(self, soaked: Soaked | None) -> dict[str, Any]:
        by_kind: dict[str, list[Survival]] = collections.defaultdict(list)
        for survival in self.survivals:
            by_kind[survival.kind].append(survival)
        survivals = list(self.survivals)
        if soaked is not None and soaked.last is not None:
            survivals.append(soaked.last)
        return {
            "simulated": self._asked.simulated,
            "seed": self._asked.seed,
            "wanted": self._wanted,
            "survived": len(self.survivals),
            "success_rate": len(self.survivals) / self._wanted,
            "run": None if soaked is None else _without(soaked, "last"),
            "by_kind": {kind: _summary(by_kind[kind]) for kind in sorted(by_kind)},
            "growth": {name: grown.to_json() for name, grown in self.grown().items()},
            "held": [dataclasses.astuple(held) for held in self.held],
            "disruptions": [dataclasses.asdict(survival) for survival in survivals],
        }


def _without(soaked: Soaked, name: str) -> dict[str, Any]:
    return {key: value for key, value in dataclasses.asdict(soaked).items() if key != name}


def _summary(survivals: Sequence[Survival]) -> dict[str, Any]:
    recovered = [one.recovered_s for one in survivals if one.recovered_s is not None]
    whole = [one.whole_s for one in survivals if one.whole_s is not None]
    return {
        "survived": len(survivals),
        "recovered_s": _median_and_p90(recovered),
        "whole_s": _median_and_p90(whole),
        "lost_steps": _median_and_p90([one.lost_steps for one in survivals]),
        "attempts": _median_and_p90([len(one.counts) for one in survivals]),
        "origins": dict(collections.Counter(o for one in survivals for o in one.origins)),
        "left_out": sum(one.left_out for one in survivals),
        "saves_failed": sum(one.saves_failed for one in survivals),
    }


def _median_and_p90(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    p90 = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return [round(statistics.median(ordered), 3), round(p90, 3)]


def show(result: Mapping[str, Any]) -> None:
    header = ("survived", "recovered s", "p90", "whole s", "p90", "lost steps", "attempts")
    print(f"{'':<10}" + "".join(f"{name:>13}" for name in header))
    for kind, of in result["by_kind"].items():
        row = [of["survived"], *of["recovered_s"], *of["whole_s"]]
        row += [of["lost_steps"][0], of["attempts"][0]]
        print(f"{kind:<10}" + "".join(f"{value:>13g}" for value in row))
    rate, run = 100 * result["success_rate"], result["run"]
    print(f"survived: {result['survived']} of {result['wanted']}, {rate:g} % (aim: 100 %)")
    print(
        f"{run['steps']} steps in {run['seconds']:.0f} s; ended with: {run['error'] or 'success'}"
    )
    print(f"errors that nobody meant: {len(run['unplanned'])}")
    found = run["differences"]
    print(f"not as without disruptions: {'; '.join(found['wrong']) or 'nothing'}")
    print(
        f"differences: losses {found['most_of_losses']}, parameters {found['most_of_parameters']}, "
        f"over {found['epochs']} epochs"
    )
    for name, grown in result["growth"].items():
        flat = "flat" if grown["flat"] else "GROWS"
        print(f"{name}: {grown['first']:g} -> {grown['last']:g}, {flat}")


@measured()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--disruptions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=0.01, help="seconds of a step, at least")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of disruptions")
    parser.add_argument("--simulated", action="store_true", help="on CPU devices, without a proxy")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    asked = parser.parse_args()
    kinds = asked.kinds.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"--kinds: {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    with (
        tempfile.TemporaryDirectory(prefix="sps-") as scratch,
        world(simulated=asked.simulated) as slices,
    ):
        from stress.elastic_soak.run import soak

        disruptions = draw_disruptions(
            asked.disruptions, asked.seed, kinds, simulated=asked.simulated
        )
        record = Record(asked, len(disruptions))
        soaked = soak(slices, disruptions, Path(scratch), asked.pace, record.add)
        result = record.write(soaked)
    faulthandler.cancel_dump_traceback_later()
    show(result)
    return exit_code(missed(result))


def missed(result: Mapping[str, Any]) -> Iterator[str]:
    """Yields what is not as it must be."""
    run = result["run"]
    if result["success_rate"] != 1:
        yield f"survived {result['survived']} of {result['wanted']} disruptions"
    if run["error"]:
        yield f"ended with {run['error']}"
    yield from run["differences"]["wrong"]
    for name, grown in result["growth"].items():
        if not grown["flat"]:
            yield f"{name} grew from {grown['first']:g} to {grown['last']:g}"


if __name__ == "__main__":
    sys.exit(main())
