"""``python -m shared_pathways_service.servers.proxy --virtual_slices=tpuv6e:2x2 …``."""

from __future__ import annotations

import sys

from shared_pathways_service.servers.proxy.main import main

if __name__ == "__main__":
    main(sys.argv[1:])
