"""Reads objects of Kubernetes from files that people write."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from shared_pathways_service.errors import InvalidRequestError

__all__ = ["read_manifests"]

_STDIN = "-"


def read_manifests(file: str, *, option: str = "--file") -> list[dict[str, Any]]:
    """Returns the objects of a file, at least one.

    Args:
      file: YAML or JSON; ``-``: standard input.
      option: The option that named the file, for errors.

    Raises:
      InvalidRequestError: The file is neither, or contains something else than objects.
      OSError: The file cannot be read.
    """
    text = sys.stdin.read() if file == _STDIN else Path(file).read_text(encoding="utf-8")
    try:
        documents = [found for found in yaml.load_all(text, Loader=_Loader) if found is not None]
    except yaml.YAMLError as error:
        raise InvalidRequestError(option, file, f"YAML or JSON ({_first_line(error)})") from error
    for number, found in enumerate(documents, start=1):
        if not isinstance(found, dict):
            expected = f"objects of Kubernetes, but document {number} is not one"
            raise InvalidRequestError(option, file, expected)
    if not documents:
        raise InvalidRequestError(option, file, "at least one object")
    return documents


def _first_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"line {mark.line + 1}: {problem}" if mark else problem


class _Loader(yaml.SafeLoader):
    """Does not parse dates, which are strings in Kubernetes."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
