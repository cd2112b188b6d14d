"""MaxText through `sps run`: the losses of a direct run, and elastic training across a lost slice.

    scripts/maxtext [--engine local|distributed] [--only slices|hosts|elastic|bucket]
        [--out result.json]

Runs the recipe of docs/maxtext.md on a service of its own. The result lists what was checked; the
exit code is 1 if a check fails. The smallest model that trains, on MaxText's synthetic data, in
float32:

| run | devices | shows |
|---|---|---|
| direct | 8 of this machine's CPU | losses to compare with |
| slices | two slices of four chips, through `sps run` | equal losses, checkpoints, no dumps |
| hosts | two slices of two hosts with four chips (`distributed`) | the same over several hosts |
| elastic | as slices; slice 1 is lost, and later returns | steps on 8, 4 and 8 devices |
| bucket | the same, checkpoints in an emulated bucket (`local`) | without DECOUPLE_GCLOUD |

On the engine `distributed`, the direct runs are multi-controller JAX, with a process for each host:
its processes exchange data by Gloo as executors do, so sums have the same order. One process adds
in another order.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote
from urllib.request import Request, urlopen

from conformance.maxtext_runs import (
    DECOUPLED,
    DIRECT,
    ELASTIC,
    HOSTS,
    SLICES,
    Run,
    clean_up,
    compiled_programs,
    elastic_run,
    proxy_log,
    train,
    train_directly,
)
from harness.host_kills import HOST
from harness.object_stores import BUCKET, object_store
from harness.own_service import own_service
from harness.results import measured, write_result

#: A result, and whether each check of it passed.
Outcome: TypeAlias = tuple[dict[str, Any], dict[str, bool]]

STEPS = 20
CHECKPOINT_PERIOD = 10
#: A save into the bucket takes longer than one into a directory.
BUCKET_STEPS = 400
OUTPUT = f"gs://{BUCKET}/output"
DEVICES_PER_HOST = 4
NAMES = ("maxtext", "jax", "jaxlib", "flax", "orbax-checkpoint", "pathwaysutils")
LOCAL, DISTRIBUTED = "local", "distributed"
TWO_SLICES, TWO_SLICES_OF_TWO_HOSTS = "tpuv6e:2x2=2", "tpuv6e:2x4=2"


def compared(direct: Run, slices: Run, hosts: int, engine: str) -> Outcome:
    """Compares a run on two slices with the same run on this machine's CPU."""
    steps = {"steps": STEPS, "checkpoint_period": CHECKPOINT_PERIOD}
    direct = dataclasses.replace(direct, options={**direct.options, **steps})
    slices = dataclasses.replace(slices, options={**slices.options, **steps})
    processes = hosts if engine == DISTRIBUTED else 1
    train_directly(direct, hosts * DEVICES_PER_HOST, processes)
    # XLA_FLAGS is unset, so MaxText asks for dumps.
    train(slices, DECOUPLED)
    log = proxy_log(slices.name)
    pairs = list(zip(direct.metrics(), slices.metrics(), strict=True))
    differing = sorted(
        {key for a, b in pairs for key in a if key.startswith("learning/") and a[key] != b[key]}
    )
    saved = [*range(0, STEPS - 1, CHECKPOINT_PERIOD), STEPS - 1]
    result = {
        "devices": hosts * DEVICES_PER_HOST,
        "processes_of_the_direct_run": processes,
        "steps": len(pairs),
        "losses": [b["learning/loss"] for _, b in pairs],
        "differing_metrics": differing,
        "checkpoints": slices.checkpoints(),
    }
    checks = {
        "losses equal those of the direct run in every digit": all(
            a["learning/loss"] == b["learning/loss"] for a, b in pairs
        ),
        "every step was trained once": [m["step"] for m in slices.metrics()] == [*range(STEPS)],
        "each step was done on all devices": set(slices.devices()) == {result["devices"]},
        "the loss falls": pairs[-1][1]["learning/loss"] < pairs[0][1]["learning/loss"],
        "both runs saved their checkpoints": direct.checkpoints() == slices.checkpoints() == saved,
        "the proxy names the dump flags that it ignores": "xla_dump_to" in log,
        "no dump is written": not slices.dumps.exists(),
    }
    if engine == LOCAL:
        # Executors keep none: docs/distributed.md, "What does not exist yet".
        result["compiled_programs_kept"] = compiled_programs()
        checks["compiled programs are kept all the same"] = compiled_programs() > 0
    return result, checks


def elastic(run: Run, environment: Mapping[str, str], engine: str) -> Outcome:
    """Loses a slice during training, and gives it back once steps on the other one were seen."""
    on_executors = engine == DISTRIBUTED
    seconds, killed = elastic_run(run, environment, on_executors=on_executors)
    phases = run.phases()
    both, one = 2 * DEVICES_PER_HOST, DEVICES_PER_HOST
    done = {step for phase in phases for step in range(phase["first"], phase["last"] + 1)}
    counted = {
        f"steps_on_{count}_devices": sum(p["steps"] for p in phases if p["devices"] == count)
        for count in (both, one)
    }
    period = int(run.options["checkpoint_period"])
    checks = {
        "steps on 8, then 4, then 8 devices": [p["devices"] for p in phases] == [both, one, both],
        "every step up to the last is done": done == set(range(int(run.options["steps"]))),
        "each restart continues from a checkpoint": all(
            (phase["first"] - 1) % period == 0 for phase in phases[1:]
        ),
    }
    result = {"phases": phases, **counted, **seconds}
    if on_executors:
        result["killed"] = killed
        checks["a worker was killed with its executor"] = killed == HOST
    return result, {f"{run.name}: {name}": passed for name, passed in checks.items()}


def local_clean_ups(scratch: Path) -> dict[str, bool]:
    """Calls what MaxText calls at each elastic event, for a local directory."""
    directory = str(scratch / "output" / "slices" / "checkpoints")
    # (Without the credentials that this machine may have.)
    nobody = {"CLOUDSDK_CONFIG": str(scratch / "no-credentials"), "NO_GCE_CHECK": "true"}
    failing = clean_up(directory, nobody)
    decoupled = clean_up(directory, {**nobody, **DECOUPLED})
    return {
        "on a local directory an elastic event fails without DECOUPLE_GCLOUD": (
            "DefaultCredentialsError" in failing.stderr
        ),
        "on a local directory it passes with DECOUPLE_GCLOUD": decoupled.returncode == 0,
    }


def bucket_clean_ups(store: Mapping[str, str], name: str) -> dict[str, bool]:
    """Calls what MaxText calls at each elastic event, for a bucket."""
    directory = f"{OUTPUT}/{name}/checkpoints"
    complete = clean_up(directory, store)
    newest = f"{directory}/{BUCKET_STEPS - 1}/"
    marker = f"{newest}commit_success.txt".removeprefix(f"gs://{BUCKET}/")
    url = f"{store['STORAGE_EMULATOR_HOST']}/storage/v1/b/{BUCKET}/o/{quote(marker, safe='')}"
    urlopen(Request(url, method="DELETE")).close()
    unmarked = clean_up(directory, store)
    return {
        "in a bucket a complete checkpoint is kept": f"Keeping {newest}" in complete.stderr,
        "in a bucket one without its marker is deleted": f"Deleting {newest}" in unmarked.stderr,
    }


def slices_part(scratch: Path, engine: str) -> Outcome:
    """Trains directly and on two slices of one host."""
    direct, slices = Run(scratch, "direct", DIRECT), Run(scratch, "slices", SLICES)
    result, checks = compared(direct, slices, 2, engine)
    return result, checks | (local_clean_ups(scratch) if engine == LOCAL else {})


def hosts_part(scratch: Path, engine: str) -> Outcome:
    """Trains directly and on two slices of two hosts."""
    sharded = {**DIRECT, "ici_fsdp_parallelism": HOSTS["ici_fsdp_parallelism"]}
    direct = Run(scratch, "direct-hosts", sharded)
    slices = Run(scratch, "hosts", HOSTS, slices=TWO_SLICES_OF_TWO_HOSTS)
    result, checks = compared(direct, slices, 4, engine)
    return result, {f"{slices.name}: {name}": passed for name, passed in checks.items()}


def elastic_part(scratch: Path, engine: str) -> Outcome:
    """Loses a slice, with checkpoints in a local directory."""
    steps = {"steps": 400, "checkpoint_period": 20}
    return elastic(Run(scratch, "elastic", {**ELASTIC, **steps}), DECOUPLED, engine)


def bucket_part(scratch: Path, engine: str) -> Outcome:
    """Loses a slice, with checkpoints in a bucket."""
    steps = {"steps": BUCKET_STEPS, "checkpoint_period": 100}
    run = Run(scratch, "bucket", {**ELASTIC, **steps}, output=OUTPUT)
    with object_store("gs") as store:
        result, checks = elastic(run, store, engine)
        return result, checks | bucket_clean_ups(store, run.name)


PARTS = {
    LOCAL: {"slices": slices_part, "elastic": elastic_part, "bucket": bucket_part},
    DISTRIBUTED: {"slices": slices_part, "hosts": hosts_part, "elastic": elastic_part},
}


@measured()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=PARTS, default=LOCAL)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", help="repeat a part; the others stay in --out")
    options = parser.parse_args()
    engine, parts = options.engine, PARTS[options.engine]
    if options.only not in (None, *parts):
        known = ", ".join(parts)
        parser.error(f"--only={options.only} is no part with --engine={engine}: it has {known}")
    result: dict[str, Any] = {"versions": {name: version(name) for name in NAMES}, "checks": {}}
    earlier: dict[str, Any] | None = None
    if options.only and options.out and options.out.exists():
        earlier = json.loads(options.out.read_text())
        result = {**earlier["result"], "versions": result["versions"]}
    with tempfile.TemporaryDirectory(prefix="sps-maxtext-") as directory:
        for name in [options.only] if options.only else parts:
            slices = TWO_SLICES_OF_TWO_HOSTS if name == "hosts" else TWO_SLICES
            with own_service(slices, 0, (f"--engine={engine}",)):
                result[name], checks = parts[name](Path(directory), engine)
            result["checks"] |= checks
    for name, passed in result["checks"].items():
        print(f"{'ok' if passed else 'FAILED'}  {name}")
    name = "maxtext" if engine == LOCAL else f"maxtext_{engine}"
    write_result(name, result, options.out, earlier=earlier)
    return 0 if all(result["checks"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
