"""A proxy that writes where its threads are into a file, whenever it gets SIGUSR1.

    python -m stress.fuzz.proxy FILE --virtual_slices=tpuv6e:2x2 …

Into a file, as nobody may be reading its log; by a handler in C, as none of its threads may ever
run Python again.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
from pathlib import Path

from shared_pathways_service.servers.proxy.main import main

if __name__ == "__main__":
    stacks = Path(sys.argv[1]).open("w")  # noqa: SIM115 - as long as the process
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    main(sys.argv[2:])
