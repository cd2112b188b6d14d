"""Programs with a custom call, and the refusals of a proxy."""

from __future__ import annotations

import pytest

from shared_pathways_service.servers.devices.status_errors import StatusError
from shared_pathways_service.servers.proxy.program_checks.program_checks import check_program
from shared_pathways_service.servers.xla import mlir


def call_of(name: str, attributes: str = "") -> str:
    return f"""
module {{
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
    %r = "stablehlo.custom_call"(%x) {{call_target_name = "{name}"{attributes}}}
      : (tensor<4xf32>) -> tensor<4xf32>
    return %r : tensor<4xf32>
  }}
}}
"""


def refused(program: str, platform: str = "cpu") -> StatusError:
    with pytest.raises(StatusError) as raised:
        check_program(mlir.parse(program.encode()), platform, 1)
    return raised.value
