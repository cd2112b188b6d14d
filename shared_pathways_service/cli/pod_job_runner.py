"""Runs one attempt of a submitted job in its pod, beside its proxy.

``python -m shared_pathways_service.cli.pod_job_runner --request=FILE --files=FILE …``

It unpacks the working directory, which may be in a bucket, runs the program as `sps run` does, and
listens on a port while the program runs, by which the pod counts as ready. It writes why the
attempt ended to the pod's status, as JSON. Its exit code is that of `sps run`, and 126 if trying
again would not help.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shared_pathways_service.api.job_requests import JobRequest
from shared_pathways_service.cli.child import Stopped, raise_on_signals
from shared_pathways_service.cli.display.output import print_error
from shared_pathways_service.cli.errors import OWN_FAILURE
from shared_pathways_service.cli.job_attempt import JobAttempt
from shared_pathways_service.cli.ready_port import ReadyPort
from shared_pathways_service.cli.workload import exit_code_of
from shared_pathways_service.cluster_state.job_ends import AttemptReport
from shared_pathways_service.constants import JOB_PORT
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.homes.kubernetes.sent_files import FilesNotReceivedError, download
from shared_pathways_service.manifests.jobs.submitted_job import FINAL_CODE

__all__ = ["main"]

#: Names of variables of the pod that the program does not get.
_OWN = ("POD_IP", "POD_UID", "POD_ATTEMPT")


class _Reporter:
    """Tells the cluster how an attempt goes."""

    def __init__(self, file: Path, address: str) -> None:
        self._file = file
        self._address = address
        self._ready: ReadyPort | None = None
        self.report = AttemptReport()

    def take(self, line: str) -> None:
        """Processes a report of `JobAttempt`."""
        word, _, rest = line.partition(" ")
        if word == "running":
            self.report.started = time.time()
            self._listen()
        elif word == "lost":
            self.report.lost = rest
        else:
            self.report.refused = rest
        self.write()

    def write(self) -> None:
        """Writes the report, which the kubelet copies to the pod's status at the end."""
        # A report is worth less than the program.
        with contextlib.suppress(OSError):
            self._file.write_text(self.report.to_text(), encoding="utf-8")

    def close(self) -> None:
        """Closes the port, so that the pod no longer counts as ready."""
        if self._ready is not None:
            self._ready.close()

    def _listen(self) -> None:
        try:
            self._ready = ReadyPort(self._address, JOB_PORT)
        except OSError as error:
            print_error(f"the job will be shown as queued: port {JOB_PORT}: {error}")


def main(words: Sequence[str]) -> int:
    """Runs an attempt; returns the exit code."""
    options = _options(words)
    scratch, address = Path(options.scratch), os.environ["POD_IP"]
    reporter = _Reporter(Path(options.report), address)
    try:
        with raise_on_signals():
            request = JobRequest.from_json(json.loads(Path(options.request).read_bytes()))
            workdir = _unpacked(options.files, scratch, request.environment)
    except Stopped as stopped:
        return 128 + stopped.number
    except (OSError, ValueError, tarfile.TarError, FilesNotReceivedError) as error:
        print_error(f"the job cannot be started: {error}")
        if isinstance(error, FilesNotReceivedError) and error.is_final:
            reporter.take(f"refused {error}")
            return FINAL_CODE
        return OWN_FAILURE
    token_file = os.environ.get("SPS_TOKEN_FILE", "")
    home = HomeChoice(
        name="pod",
        options={
            "service_address": options.service,
            "pod_ip": address,
            "pod_uid": os.environ["POD_UID"],
            "token_file": token_file,
            "transfer_dir": options.arrays,
            "insecure_credentials": request.session.proxy_options.use_insecure_credentials,
        },
    )
    inherited = {name: value for name, value in os.environ.items() if name not in _OWN}
    job = JobAttempt(
        request,
        os.environ["POD_UID"],
        int(os.environ.get("POD_ATTEMPT") or 0) + 1,
        reporter.take,
        workdir=workdir,
        variables={**inherited, **request.environment},
        home=home,
    )
    with contextlib.closing(reporter):
        code = exit_code_of(job.run)
    return FINAL_CODE if reporter.report.refused else code


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("request", "files", "scratch", "report", "service"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--arrays", default="")
    return parser.parse_args(words)


def _unpacked(files: str, scratch: Path, variables: Mapping[str, str]) -> Path:
    """Unpacks the working directory; returns it.

    Args:
      files: Path or URL of its archive.
      scratch: Where it goes.
      variables: Those of the program, which may say how a bucket is reached.
    """
    workdir = scratch / "workdir"
    for directory in (workdir, Path(os.environ["TMPDIR"])):
        directory.mkdir(parents=True, exist_ok=True)
    if "://" in files:
        downloaded = scratch / "workdir.tar.gz"
        with _with_variables(variables):
            asyncio.run(download(files, downloaded))
        _extract(downloaded, workdir)
        downloaded.unlink()
    else:
        _extract(Path(files), workdir)
    return workdir


def _extract(files: Path, to: Path) -> None:
    with tarfile.open(files) as archive:
        archive.extractall(to, filter="data")


@contextlib.contextmanager
def _with_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Adds variables to those of this process for a while; no other thread runs yet."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    sys.exit(main(sys.argv[1:]))
