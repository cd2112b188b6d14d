"""What `sps verify` proves of a service: the checks, in their order, and the clients they drive.

`checks` has the checks, `results` how they came out, `client` is the program that each check runs
as a tenant, `tenant` its handle here, `service` the view of the service from outside, and `link`
the HTTP proxy whose connections are cut.
"""

from __future__ import annotations

from shared_pathways_service.cli.verification.checks import CHECKS, Verification
from shared_pathways_service.cli.verification.results import Outcome, Result

__all__ = ["CHECKS", "Outcome", "Result", "Verification"]
