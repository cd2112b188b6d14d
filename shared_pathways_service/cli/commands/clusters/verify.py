"""`sps verify`: tests a service with tenants that connect, compute, and are disturbed."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from shared_pathways_service.api.instances import parse_instance_texts
from shared_pathways_service.api.proxy_options import split_options
from shared_pathways_service.cli.child import Stopped, ignoring_signals, raise_on_signals
from shared_pathways_service.cli.display.output import (
    AsJson,
    print_aside,
    print_json,
    print_log_tail,
    print_table,
)
from shared_pathways_service.cli.errors import FAILED
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.cli.verification import CHECKS, Outcome, Result, Verification
from shared_pathways_service.cli.verification.service_state import ServiceView
from shared_pathways_service.errors import InvalidRequestError, ServiceNotFound
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.runtime.terminal import lasting_console

__all__ = ["verify"]

#: The type to request if no embedded service runs yet.
_KIND = "tpuv6e:2x2"
#: Slices to use by default: two allow a second tenant.
_COUNT = 2


_Slices = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TYPE=COUNT",
        help="Use so many slices (the checks refusal and queue request more). "
        "[default: up to two free ones of the service's first type]",
    ),
]
_GcsBucket = Annotated[
    str | None,
    typer.Option(
        "--gcs-bucket", metavar="gs://NAME", help="Use this bucket for the service's files."
    ),
]
_ProxyOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--proxy-options",
        metavar="KEY:VALUE",
        help="Set an option of proxies, as `sps run` does; repeatable.",
    ),
]


@takes_place
def verify(
    *,
    slices: _Slices = None,
    gcs_bucket: _GcsBucket = None,
    proxy_server_image: Annotated[
        str | None,
        typer.Option("--proxy-server-image", help="Use this image for proxies, as `sps run` does."),
    ] = None,
    proxy_options: _ProxyOptions = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Wait so long in each step.")
    ] = 300.0,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Test a service: connect, compute, share it, disturb it, and leave nothing behind.

    Slices of other tenants are not touched. The checks refusal and queue request one slice more
    than is free, possibly more than --slices. If another tenant leaves at that moment, the request
    may be granted: then it is ended at once, and repeated.

    Exit code 0: every check passed; 1: a check failed or was skipped.
    """
    if not 0 < timeout < float("inf"):
        raise InvalidRequestError("--timeout", timeout, "seconds, more than 0")
    settings = Settings.load()
    given: dict[str, Any] = {"timeout": timeout, "gcs_bucket": gcs_bucket}
    given |= {"proxy_options": split_options(proxy_options)} if proxy_options else {}
    given |= {"proxy_server_image": proxy_server_image} if proxy_server_image else {}
    place.request(**given)
    service = ServiceView(place, settings)
    kind, count = _slices(slices, service)
    request = place.request(**given, expected_tpu_instances={kind: count})
    arguments = {**dataclasses.asdict(place), **given}
    verification = Verification(
        service, request, arguments, kind=kind, count=count, timeout_s=timeout
    )
    results: list[Result] = []
    try:
        with raise_on_signals(), _ended(verification):
            _run(verification, results, quiet=as_json)
    except Stopped as stopped:
        print_aside("sps: interrupted; all tenants of the verification have been ended")
        raise typer.Exit(128 + stopped.number) from None
    passed = all(result.outcome is Outcome.PASSED for result in results)
    if as_json:
        checks = [dataclasses.asdict(result) for result in results]
        print_json({"ok": passed, "instance_type": kind, "slices": count, "checks": checks})
    else:
        _print(results)
    if not passed:
        raise typer.Exit(FAILED)


class _ended:  # noqa: N801 - used like a function, in a with statement
    """Enters a verification, and ignores further signals while it ends."""

    def __init__(self, verification: Verification) -> None:
        self._verification = verification

    def __enter__(self) -> None:
        self._verification.__enter__()

    def __exit__(self, *error: object) -> None:
        with ignoring_signals():
            self._verification.__exit__(*error)


def _slices(given: Sequence[str] | None, service: ServiceView) -> tuple[str, int]:
    """Returns the instance type and the number of its slices to use."""
    if given:
        counts = parse_instance_texts(given)
        if len(counts) != 1:
            raise InvalidRequestError("--slices", ",".join(given), "one type: TYPE=COUNT")
        ((kind, count),) = counts.items()
        return str(kind), count
    found = service.slices()
    if not found and not service.reader.starts_on_demand:
        raise ServiceNotFound("the service has no slices", hint="`sps status` shows it")
    for kind, (_, free) in found.items():
        if free:
            return kind, min(free, _COUNT)
    for kind, (usable, _) in found.items():
        if usable:
            return kind, min(usable, _COUNT)
    return next(iter(found), _KIND), _COUNT


def _run(verification: Verification, results: list[Result], *, quiet: bool) -> None:
    """Runs the checks, with a line on standard error when each of them ends."""
    console = lasting_console(sys.stderr)
    with console.status("") as shown:

        def begin(name: str) -> None:
            shown.update(f"{len(results) + 1}/{len(CHECKS)} {name} ...")

        for result in verification.results(begin):
            results.append(result)
            if not quiet or result.outcome is not Outcome.PASSED:
                print_aside(f"{result.outcome:7}  {result.name}: {result.found}")


def _print(results: Sequence[Result]) -> None:
    rows = [(r.name, r.outcome.value, f"{r.seconds:.1f}", r.found) for r in results]
    print_table(("CHECK", "RESULT", "SECONDS", "FOUND"), rows)
    for result in results:
        if result.look_at:
            print_aside(f"{result.name}: look at {result.look_at}")
        print_log_tail(result.log_tail)
