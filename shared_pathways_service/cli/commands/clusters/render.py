"""`sps render`: prints the objects that an operator creates, or the JobSet of a PathwaysJob."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any

import typer

from shared_pathways_service.api.requests import DEFAULT_NAMESPACE
from shared_pathways_service.api.validation import check_dns_label
from shared_pathways_service.cli.display.manifest_text import print_manifests
from shared_pathways_service.cli.display.output import AsJson
from shared_pathways_service.cli.lookups.manifest_files import read_manifests
from shared_pathways_service.cli.options.service_options import ServiceOptions, takes_service
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests.hotswap_jobset import recipe
from shared_pathways_service.manifests.pathways_job import render_pathways_job
from shared_pathways_service.manifests.pathways_job_spec import is_pathways_job
from shared_pathways_service.manifests.priority_classes import priority_classes
from shared_pathways_service.manifests.rbac import (
    OPERATORS,
    TENANTS,
    VERIFICATION,
    Subject,
    operator_rbac,
    tenant_rbac,
    verification_objects,
)
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_objects

__all__ = ["render"]

Objects = list[dict[str, Any]]

_SERVICE = "service"
_OPERATORS = "operator-rbac"
_RBAC = ("tenant-rbac", _OPERATORS)
_HOTSWAP = "hotswap"
_WHAT = (_SERVICE, *_RBAC, VERIFICATION, "priority-classes", _HOTSWAP)
_DEFAULT_NAME = "pathways-cluster"


_ServiceAccount = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMESPACE:NAME",
        help="Grant the rules to this service account; repeatable.",
    ),
]
_File = Annotated[
    str | None,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="Convert the PathwaysJob in this YAML or JSON file; -: standard input.",
    ),
]
_Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        "--jobset-name",
        help=f"Name the service. [default: {_DEFAULT_NAME}]",
        show_default=False,
    ),
]


@takes_service
def render(
    what: Annotated[
        str | None, typer.Argument(metavar="|".join(_WHAT), help="The objects to print.")
    ] = None,
    *,
    file: _File = None,
    name: _Name = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            help=f"Put the objects into this namespace. [default: {DEFAULT_NAMESPACE}]",
            show_default=False,
        ),
    ] = None,
    user: Annotated[
        list[str] | None, typer.Option(help="Grant the rules to this user; repeatable.")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="Grant the rules to this group; repeatable.")
    ] = None,
    service_account: _ServiceAccount = None,
    as_json: AsJson = False,
    wanted: ServiceOptions,
) -> None:
    """Print objects for `kubectl create -f -`, or the JobSet of a PathwaysJob (--file).

    service: the objects of `sps deploy` with the same options. tenant-rbac, operator-rbac: roles
    of tenants and operators (--ui: of operators that use `sps deploy --ui`).
    user-verification: what `sps deploy --verify-users` needs.
    priority-classes, hotswap: see docs/operations.md.
    """
    pages = what == _OPERATORS and bool(wanted.ui)
    if pages:
        wanted = dataclasses.replace(wanted, ui=None)
    service = wanted.fields()
    _check_goes_together(what, "--file", file)
    _check_goes_together(what, "--name", name, _SERVICE)
    _check_service_options(what, wanted)
    _check_goes_together(what, "--user", user, *_RBAC)
    _check_goes_together(what, "--group", group, *_RBAC)
    _check_goes_together(what, "--service-account", service_account, *_RBAC)
    _check_goes_together(what, "--namespace", namespace, _SERVICE, *_RBAC, VERIFICATION, _HOTSWAP)
    namespace = check_dns_label("--namespace", namespace or DEFAULT_NAMESPACE)
    subjects = _subjects(user, group, service_account)
    made: dict[str | None, Callable[[], Objects]] = {
        None: lambda: _from_file(file),
        _SERVICE: lambda: _service(name or _DEFAULT_NAME, namespace, service),
        "tenant-rbac": lambda: tenant_rbac(namespace, subjects or [TENANTS]),
        _OPERATORS: lambda: operator_rbac(namespace, subjects or [OPERATORS], pages=pages),
        VERIFICATION: lambda: verification_objects(namespace),
        "priority-classes": priority_classes,
        _HOTSWAP: lambda: [*priority_classes(), *recipe(namespace)],
    }
    if what not in made:
        raise InvalidRequestError("render", what, f"one of {', '.join(_WHAT)}, or --file")
    print_manifests(made[what](), as_json=as_json)


def _from_file(file: str | None) -> Objects:
    if file is None:
        raise InvalidRequestError("render", None, f"one of {', '.join(_WHAT)}, or --file")
    # Other objects are printed unchanged, so that the whole file can go to kubectl.
    return [
        render_pathways_job(manifest) if is_pathways_job(manifest) else manifest
        for manifest in read_manifests(file)
    ]


def _service(name: str, namespace: str, fields: dict[str, Any]) -> Objects:
    if "instances" not in fields:
        raise InvalidRequestError("--slices", None, "TYPE=COUNT, e.g. tpuv6e:2x2=2")
    return service_objects(ServiceInputs(name=name, namespace=namespace, **fields))


def _subjects(
    users: list[str] | None, groups: list[str] | None, accounts: list[str] | None
) -> list[Subject]:
    return [
        *(Subject(kind="User", name=name) for name in users or ()),
        *(Subject(kind="Group", name=name) for name in groups or ()),
        *(Subject.account(text, field="--service-account") for text in accounts or ()),
    ]


def _check_goes_together(what: str | None, option: str, value: object, *kinds: str) -> None:
    if value not in (None, []) and what not in (kinds or (None,)):
        where = f"to be given only with {' or '.join(kinds)}" if kinds else "to be given alone"
        raise InvalidRequestError(option, value, where)


def _check_service_options(what: str | None, wanted: ServiceOptions) -> None:
    for field in dataclasses.fields(wanted):
        option = f"--{field.name.replace('_', '-')}"
        _check_goes_together(what, option, getattr(wanted, field.name), _SERVICE)
