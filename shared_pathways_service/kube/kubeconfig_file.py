"""Reads one kubeconfig file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.kube.kubeconfig_entry import Entry

__all__ = ["entries_of", "read_file"]


class _Loader(yaml.SafeLoader):
    """Reads dates as text, as kubectl does."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if not tag.endswith(":timestamp")]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_file(path: Path) -> Entry:
    """Returns the content of a file; empty if there is none.

    Raises:
      InvalidRequestError: It is not a kubeconfig.
    """
    return Entry(kind="file", name=str(path), data=_read(path), file=path.absolute())


def entries_of(file: Entry, kind: str) -> dict[str, Entry]:
    """Returns the ``clusters``, ``users`` or ``contexts`` of a file, by name.

    Raises:
      InvalidRequestError: They are no list of mappings with a name each.
    """
    one = kind.removesuffix("s")
    entries: dict[str, Entry] = {}
    for item in _items(file, kind):
        try:
            name, data = item["name"], item.get(one) or {}
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidRequestError(
                "kubeconfig", file.name, f"a name for each of the {kind}, each a mapping"
            ) from error
        if not isinstance(name, str) or not isinstance(data, Mapping):
            raise InvalidRequestError(
                f"name of a {one} in {file.name}",
                name,
                f"text in quotes, with a {one} as a mapping",
            )
        if name in entries:
            raise InvalidRequestError(f"{kind} in {file.name}", name, "each name once")
        entries[name] = Entry(kind=one, name=name, data=data, file=file.file)
    return entries


def _items(file: Entry, kind: str) -> list[Any]:
    items = file.data.get(kind) or []
    if not isinstance(items, list):
        raise InvalidRequestError(f"{kind} in {file.name}", type(items).__name__, "a list")
    return items


def _read(path: Path) -> Mapping[str, Any]:
    expected = "a kubeconfig: YAML with clusters, users and contexts"
    try:
        document = _parsed(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InvalidRequestError("kubeconfig", str(path), f"{expected}, not: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise InvalidRequestError("kubeconfig", str(path), expected)
    return document


def _parsed(content: bytes) -> Any:
    # (PyYAML does not read JSON with tabs between its values.)
    if content.lstrip().startswith(b"{"):
        with contextlib.suppress(ValueError):
            return json.loads(content)
    return yaml.load(content, _Loader)  # noqa: S506 - a SafeLoader
