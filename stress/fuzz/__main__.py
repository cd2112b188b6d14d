"""A proxy under random requests: no crash, no hang, no leak, no effect on another session.

    python -m stress.fuzz [--minutes 60] [--seed 1] [--out result.json] [--round NAME]

Rounds of six kinds, in turn, against one proxy process: valid and half-valid sequences of requests
of every kind; several of these at once, some aborted; the same with mutated bytes; random bytes to
each gRPC method; random bytes to the socket; programs with custom calls of every name, with random
sizes and attributes, and with Shardy's shardings. Meanwhile a witness computes in its own session
and checks every result. Every minute all requests pause: the proxy's counters must show nothing of
the ended sessions, and the usage of the process is recorded.

A finding is printed and recorded with its round and seed; then the run continues on another proxy.
If a proxy does not answer, the stacks and the processor time of its threads are recorded, and which
clients it still answers. `--round NAME --seed SEED` repeats one round.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.results import exit_code, measured, write_result
from stress.fuzz.campaign import Campaign, started_proxy
from stress.fuzz.conversation import FuzzError
from stress.fuzz.rounds import ROUNDS
from stress.fuzz.witness import Witness


@measured()
def main() -> int:
    """Parses the arguments, runs, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--round", choices=ROUNDS, help="Run only this one, with just this seed.")
    parser.add_argument("--out", type=Path, help="Written at each rest, so that little is lost.")
    arguments = parser.parse_args()
    campaign = Campaign(arguments.seed, lambda line: print(line, flush=True))

    def write() -> None:
        write_result("fuzz", campaign.result(), arguments.out)

    if arguments.round:
        with started_proxy() as (proxy, target):
            witness = Witness(target.address)
            try:
                campaign.round(arguments.round, arguments.seed, proxy, target, witness)
            except FuzzError as error:
                campaign.found(error)
            finally:
                witness.close()
        write()
        return exit_code(one["what"][0] for one in campaign.findings)

    while campaign.passed_s() < 60 * arguments.minutes:
        try:
            campaign.run(60 * arguments.minutes, write)
        except FuzzError as error:
            campaign.found(error)
    write()
    return exit_code(one["what"][0] for one in campaign.findings)


if __name__ == "__main__":
    sys.exit(main())
