"""Prints the JobSet that upstream's deploy script makes, as JSON.

``python -m tests.manifests.upstream_jobset '{"tpu_type": "v6e", …}'``, with arguments of its
`run_deployment`. Upstream builds it of the classes of the package `kubernetes`, which is not
installed; a stand-in keeps the fields that they are made with. Nothing else of it is used.
"""

from __future__ import annotations

import importlib
import json
import logging
import re
import sys
import types
from typing import Any, Self

import yaml


class _Model:
    """An object of Kubernetes: the fields that are set."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> None:
        # As in the real classes, a field that is not set is None; special methods are not fields.
        if name.startswith("__"):
            raise AttributeError(name)


class _ApiClient:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def sanitize_for_serialization(self, value: Any) -> Any:
        if isinstance(value, _Model):
            return self.sanitize_for_serialization(
                {_camel(k): v for k, v in vars(value).items() if v is not None}
            )
        if isinstance(value, dict):
            return {k: self.sanitize_for_serialization(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.sanitize_for_serialization(v) for v in value]
        return value


class _Client(types.ModuleType):
    ApiClient = _ApiClient

    def __getattr__(self, name: str) -> type[_Model]:
        if not name[0].isupper():
            raise AttributeError(name)
        model = type(name, (_Model,), {"openapi_types": {"env": "", "args": ""}})
        setattr(self, name, model)
        return model


def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)


def _made(**arguments: Any) -> Any:
    for module in (
        types.ModuleType("kubernetes"),
        _Client("kubernetes.client"),
        types.ModuleType("kubernetes.config"),
    ):
        sys.modules[module.__name__] = module
        parent, _, child = module.__name__.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    script = importlib.import_module(
        "pathwaysutils.experimental.shared_pathways_service.deploy_pathways_service"
    )
    texts: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    log = logging.getLogger(script.__name__)
    log.setLevel("INFO")
    log.addHandler(Keep())
    # A dry run shows what it made in its log alone.
    script.run_deployment(**arguments, dry_run=True)
    [made] = [text for text in texts if "apiVersion" in text]
    return yaml.safe_load(made)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_made(**json.loads(sys.argv[1]))))
