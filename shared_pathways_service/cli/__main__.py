"""Runs `sps` by ``python -m shared_pathways_service.cli``."""

from __future__ import annotations

from shared_pathways_service.cli import main

if __name__ == "__main__":
    main()
