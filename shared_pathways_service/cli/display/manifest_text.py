"""Prints objects of Kubernetes as YAML, or as JSON with one object per line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import yaml

from shared_pathways_service.cli.display.output import print_json

__all__ = ["print_manifests", "yaml_text"]

_WIDTH = 100


class _Dumper(yaml.SafeDumper):
    """Writes YAML like people do: indented lists, scripts as blocks, no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        del indentless
        super().increase_indent(flow, False)


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def yaml_text(*manifests: dict[str, Any]) -> str:
    """Returns objects as YAML, one document each."""
    return "---\n".join(
        yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
        for manifest in manifests
    )


def print_manifests(manifests: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """Prints objects in a form that can be piped to ``kubectl create -f -``."""
    if as_json:
        for manifest in manifests:
            print_json(manifest)
        return
    sys.stdout.write(yaml_text(*manifests))
    sys.stdout.flush()
