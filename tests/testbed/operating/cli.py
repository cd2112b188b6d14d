"""Runs `sps`, and a program that holds slices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from harness.programs import Program
from harness.testbed.clients import client
from shared_pathways_service.testing.testbed import Namespace

HOLDER = """
connection = connecting(expected_tpu_instances={"tpuv6e:2x2": 1})
try:
    with connection:
        say("holds", name=connection.proxy_job_name, pod=connection.proxy_pod_name)
        wait_for("leave")
    say("left")
except errors.ProxyFailed as error:
    say("deleted", message=str(error))
"""


@contextlib.contextmanager
def holder(namespace: Namespace) -> Iterator[tuple[Program, str, str]]:
    """A program that holds a slice: it, its connection's name, its pod's."""
    with client(namespace, HOLDER) as running:
        held = running.expect("holds")
        yield running, held["name"], held["pod"]
