"""``python -m shared_pathways_service.servers.proxy --virtual_slices=tpuv6e:2x2 …``."""

from __future__ import annotations

import os
import signal
import sys

if __name__ == "__main__":
    # Before the slow imports: the first process of a container ignores signals that it has no
    # handler for, and would continue until it is killed.
    signal.signal(signal.SIGTERM, lambda _signal, _frame: os._exit(0))

from shared_pathways_service.servers.proxy.main import main

if __name__ == "__main__":
    main(sys.argv[1:])
