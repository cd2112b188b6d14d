"""What `sps verify` proves of a service: the checks, in their order, and the clients they drive.

`verify_checks` has the checks, `results` how they came out, `tenant_program` is the program that
each check runs as a tenant, `tenant` its handle here, `service_state` the view of the service from
outside, and `link` the HTTP proxy whose connections are cut.
"""

from __future__ import annotations

from shared_pathways_service.cli.verification.results import Outcome, Result
from shared_pathways_service.cli.verification.verify_checks import CHECKS, Verification

__all__ = ["CHECKS", "Outcome", "Result", "Verification"]
