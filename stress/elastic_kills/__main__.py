"""kill -9 of a training process at random moments: from what state the next one resumes.

    python -m stress.elastic_kills [--kills 50] [--steps 90] [--seed 1] [--out result.json]

`stress.elastic_kills.trainer` trains on CPU devices and saves a checkpoint every third step. It is
killed and restarted until it ends by itself; then another run begins, until the number of kills is
reached. Every other kill is at a moment uniform over the time of a whole run, program start
included. Half of the others are uniform over the time since training began; the other half are
aimed at saves: at a moment within the duration of a save, after a step that is followed by one.

Checked after each kill: which checkpoints are committed, and whether the process left anything.
After each start: that it resumes from the newest of those. After each run: that the steps that
count used each example of an epoch once, in the order and with the losses of an undisturbed run;
that the parameters equal that run's bit by bit; that only checkpoints interrupted by a kill are in
quarantine; and that no other file is left.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.results import exit_code, measured, write_result
from stress.elastic_kills.kills import measure, show_result
from stress.elastic_kills.runs import Training


@measured()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=90, help="of a run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    asked = parser.parse_args()
    result = measure(
        asked.kills,
        Training(steps=asked.steps),
        asked.seed,
        lambda line: print(line, flush=True),
        lambda known: write_result(
            "elastic_kills", known, asked.out, {"lost_steps": known["lost_steps"]}
        ),
    )
    show_result(result)
    return exit_code(run.splitlines()[0] for run in result["failed"])


if __name__ == "__main__":
    sys.exit(main())
