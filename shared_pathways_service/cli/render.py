"""`sps render`: the JobSet of a PathwaysJob, for clusters without PathwaysJob's controller."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from shared_pathways_service.cli.output import AsJson, print_json
from shared_pathways_service.core.kubernetes.pathways_job import render_pathways_job
from shared_pathways_service.core.kubernetes.pathways_job_spec import is_pathways_job
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["render"]

_STDIN = "-"
_WIDTH = 100


def render(
    *,
    file: Annotated[
        str,
        typer.Option("--file", "-f", metavar="FILE", help="YAML or JSON; -: standard input."),
    ],
    as_json: AsJson = False,
) -> None:
    """Print the JobSet of a PathwaysJob, for clusters without PathwaysJob's controller.

    What is no PathwaysJob in the file is printed as it is: pipe all of it to `kubectl create -f -`.
    """
    manifests = [
        render_pathways_job(manifest) if is_pathways_job(manifest) else manifest
        for manifest in _documents(file)
    ]
    if as_json:
        for manifest in manifests:
            print_json(manifest)
    else:
        sys.stdout.write("---\n".join(_yaml(manifest) for manifest in manifests))
        sys.stdout.flush()


def _documents(file: str) -> list[dict[str, Any]]:
    text = sys.stdin.read() if file == _STDIN else Path(file).read_text(encoding="utf-8")
    try:
        documents = [found for found in yaml.load_all(text, Loader=_Loader) if found is not None]
    except yaml.YAMLError as error:
        raise InvalidRequestError("--file", file, f"YAML or JSON ({_first_line(error)})") from error
    for number, found in enumerate(documents, start=1):
        if not isinstance(found, dict):
            expected = f"objects of Kubernetes; document {number} is none"
            raise InvalidRequestError("--file", file, expected)
    if not documents:
        raise InvalidRequestError("--file", file, "at least one object")
    return documents


def _first_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"line {mark.line + 1}: {problem}" if mark else problem


class _Loader(yaml.SafeLoader):
    """Leaves dates as they are written: Kubernetes' are texts."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Dumper(yaml.SafeDumper):
    """Writes as people do: lists are indented, scripts are blocks, nothing refers elsewhere."""

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


def _yaml(manifest: dict[str, Any]) -> str:
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
