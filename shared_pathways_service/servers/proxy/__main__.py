"""``python -m shared_pathways_service.servers.proxy --virtual_slices=tpuv6e:2x2 …``."""

from __future__ import annotations

import os
import signal
import sys

if __name__ == "__main__":
    # Before all that takes long: the first process of a container ignores what it has no handler
    # for, and would go on to ask for slices until it is killed.
    signal.signal(signal.SIGTERM, lambda _signal, _frame: os._exit(0))

from shared_pathways_service.servers.proxy.main import main

if __name__ == "__main__":
    main(sys.argv[1:])
