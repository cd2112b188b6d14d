"""The checks of `sps verify`, and the clients that they drive.

- `verify_checks`, `results`: the checks and their results
- `tenant_program`: the program that checks run as a tenant; `tenant`: its handle in this process
- `service_state`: the view of the service from outside
- `link`: an HTTP proxy whose connections can be cut
"""

from __future__ import annotations

from shared_pathways_service.cli.verification.results import Outcome, Result
from shared_pathways_service.cli.verification.verify_checks import CHECKS, Verification

__all__ = ["CHECKS", "Outcome", "Result", "Verification"]
