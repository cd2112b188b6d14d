"""`sps doctor`: checks everything that a connection needs, without connecting."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from shared_pathways_service.api.checks import Check, Outcome
from shared_pathways_service.api.instances import parse_instance_texts
from shared_pathways_service.api.proxy_options import split_options
from shared_pathways_service.cli.display.output import AsJson, print_json
from shared_pathways_service.cli.errors import exit_code
from shared_pathways_service.cli.lookups.place_readers import reader_of
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.operations.service_readers.machine_checks import machine_checks
from shared_pathways_service.runtime.settings import Settings

__all__ = ["doctor"]

_SIGNS = {
    Outcome.OK: "ok     ",
    Outcome.WARNING: "warning",
    Outcome.FAILED: "FAILED ",
    Outcome.UNKNOWN: "unknown",
}
_INDENT = " " * 9


_Slices = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TYPE=COUNT",
        help="Check a request for these slices; repeatable, or comma-separated.",
    ),
]
_ProxyOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--proxy-options",
        metavar="KEY:VALUE",
        help="Check a request with this option of the proxy; repeatable.",
    ),
]
_ProxyJobName = Annotated[
    str | None,
    typer.Option(
        "--proxy-job-name",
        help="Check that this running proxy of the cluster uses the client's gRPC credentials.",
    ),
]


@takes_place
def doctor(
    *,
    slices: _Slices = None,
    gcs_bucket: Annotated[
        str | None,
        typer.Option("--gcs-bucket", metavar="gs://NAME", help="Check a request with this bucket."),
    ] = None,
    proxy_server_image: Annotated[
        str | None,
        typer.Option("--proxy-server-image", help="Check a request with this image of the proxy."),
    ] = None,
    proxy_options: _ProxyOptions = None,
    proxy_job_name: _ProxyJobName = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Wait so long for all checks of the service.")
    ] = 20.0,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Check everything that a connection needs, and say how to fix what fails.

    Nothing is created. The exit code is 0 if no check failed; otherwise it is that of the first
    failed check: 2 usage, 3 not ready or not found, 5 access denied, 1 any other failure.
    """
    if not 0 < timeout < float("inf"):
        raise InvalidRequestError("--timeout", timeout, "seconds, more than 0")
    settings = Settings.load()
    given: dict[str, Any] = {
        "gcs_bucket": gcs_bucket,
        "proxy_options": split_options(proxy_options or ()),
    }
    if proxy_server_image:
        given["proxy_server_image"] = proxy_server_image
    if slices:
        given["expected_tpu_instances"] = parse_instance_texts(slices)
    checks = machine_checks(settings)
    request = place.request(**given)
    checks += reader_of(place, settings).checks(request, timeout, proxy_job_name)
    if as_json:
        print_json({"ok": not _failed(checks), "checks": [_as_data(check) for check in checks]})
    else:
        _print(checks)
    if failed := _failed(checks):
        error = failed[0].error
        raise typer.Exit(exit_code(error) if error is not None else 1)


def _failed(checks: Sequence[Check]) -> list[Check]:
    return [check for check in checks if check.outcome is Outcome.FAILED]


def _as_data(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "outcome": check.outcome.value,
        "found": check.found,
        "fix": check.fix or None,
    }


def _print(checks: Sequence[Check]) -> None:
    for check in checks:
        lines = [f"{_SIGNS[check.outcome]}  {check.name}: {check.found}"]
        if check.outcome is not Outcome.OK and check.fix:
            lines += [f"{_INDENT}fix: {check.fix.replace(chr(10), chr(10) + _INDENT)}"]
        sys.stdout.write("\n".join(lines) + "\n")
