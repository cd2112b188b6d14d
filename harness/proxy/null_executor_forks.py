"""Starts executors that compute nothing, as `executor_forks` does those that compute.

python -m harness.proxy.null_executor_forks
"""

from __future__ import annotations

from harness.proxy.forks import fork_for_each_line
from harness.proxy.null_engine import NullEngine
from shared_pathways_service.servers.executor.__main__ import main

if __name__ == "__main__":
    fork_for_each_line(lambda argv: main(argv, lambda _options: NullEngine()))
