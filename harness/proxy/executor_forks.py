"""Starts executors by forking, which saves each of them a second of imports.

    python -m harness.proxy.executor_forks

Reads flags of executors, as a JSON list on each line, and prints the report of each that serves.
"""

from __future__ import annotations

from harness.proxy.forks import fork_for_each_line
from shared_pathways_service.servers.executor.__main__ import main

# What an executor imports when it serves.
from shared_pathways_service.servers.executor.opened_clients import XlaEngine

__all__ = ["XlaEngine"]

if __name__ == "__main__":
    fork_for_each_line(main)
