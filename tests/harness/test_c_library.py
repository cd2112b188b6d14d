"""Calls of the C library that fail name what failed, and why."""

from __future__ import annotations

import os
import re
import sys

import pytest

from harness.fork_server.c_library import enter_namespace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has namespaces")


def test_a_namespace_that_cannot_be_entered_is_named() -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    try:
        expected = "setns (the network namespace of a): Invalid argument"
        with pytest.raises(OSError, match=re.escape(expected)):
            enter_namespace(descriptor, "the network namespace of a")
    finally:
        os.close(descriptor)
