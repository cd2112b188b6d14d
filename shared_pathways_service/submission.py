"""Provides `submit`, which hands a program over to the service, and `Job`, its handle."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from shared_pathways_service.agent.request import this_requester, user_name
from shared_pathways_service.api.job_requests import JobRequest, JobStatus, check_environment
from shared_pathways_service.api.proxy_options import ProxyOptions
from shared_pathways_service.api.service_choice import DEFAULT_NAMESPACE, ServiceChoice, home_of
from shared_pathways_service.api.validation import check_seconds
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.homes.choice import make_job_home
from shared_pathways_service.homes.job_home import JobHome
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.runtime.umask import current_umask

__all__ = ["Job", "JobStatus", "submit"]

#: Variables of the submitter that a job's program gets as well; others must be named.
_INHERITED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TMPDIR",
    "TZ",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "XDG_RUNTIME_DIR",
)


#: Arguments that choose a service in a cluster.
_OF_CLUSTERS = ("cluster", "context", "pathways_service")

_EMBEDDED = ServiceChoice.check((None, None, None), None, DEFAULT_NAMESPACE, None)


@dataclasses.dataclass(frozen=True)
class Job:
    """A submitted job. It ends by itself, or with `cancel`, whatever becomes of this process.

    Attributes:
      name: Its name, by which every `sps` command finds it.
      service: The service that runs it; by default the embedded one.
    """

    name: str
    service: ServiceChoice = _EMBEDDED

    def status(self) -> JobStatus:
        """Returns its state.

        Raises:
          ServiceNotFound: Its files were deleted.
        """
        return self._home().job(self.name)

    def wait(self, timeout: float | None = None) -> JobStatus:
        """Waits until it has ended.

        Args:
          timeout: Seconds; None: without limit.

        Returns:
          Its state, with its `exit_code`.

        Raises:
          TimeoutError: It has not ended in time.
        """
        limit = math.inf if timeout is None else check_seconds("timeout", timeout, infinity=True)
        status = self._home().wait(self.name, limit)
        if status.is_active:
            raise TimeoutError(f"the job {self.name} is still {status.state} after {limit:g} s")
        return status

    def cancel(self) -> JobStatus:
        """Ends it, and returns its state once its processes have ended."""
        return self._home().cancel(self.name)

    def logs(self, lines: int = 1000) -> list[str]:
        """Returns the last lines of its program's output."""
        return self._home().output(self.name, lines)

    def _home(self) -> JobHome:
        return make_job_home(self.service, Settings.load(), user_name())


def submit(
    command: Sequence[str],
    *,
    expected_tpu_instances: Mapping[str, int] | None = None,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    workdir: str | os.PathLike[str] = ".",
    retries: int = 0,
    queue_timeout: float = math.inf,
    priority: int | str | None = None,
    timeout: float = 300.0,
    elastic_slices: int = 0,
    max_lifetime: float | None = None,
    labels: Mapping[str, str] | None = None,
    proxy_options: ProxyOptions | Sequence[str] | None = None,
    local_devices: bool = True,
    strict: bool | None = None,
    tune_allocator: bool = True,
    cluster: str | None = None,
    project: str | None = None,
    region: str | None = None,
    context: str | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    pathways_service: str | None = None,
    image: str | None = None,
    workdir_bucket: str | None = None,
) -> Job:
    """Hands a program over to a service, which runs it on slices as `sps run` does.

    The program outlives this process. It runs on this machine with the embedded service, and in a
    pod with a service in a cluster.

    Args:
      command: The program and its arguments, e.g. ``["python", "train.py"]``.
      expected_tpu_instances: Number of slices by instance type, as of connect().
      name: The job's name, a DNS label, unique among the active jobs of this user; None:
        ``PROGRAM-xxxxx``.
      env: Variables of the program. Of this process's variables it gets only the usual ones, such
        as PATH and HOME, and none in a cluster. Their values are kept in a file that only this user
        can read, until the job has ended, or in a Secret.
      workdir: The program's working directory. In a cluster its files are sent, except those that
        git ignores.
      retries: How often the program is started again after it failed or lost its connection, each
        time with a new connection, and after a longer pause.
      queue_timeout: Seconds to wait for slices that are taken; by default without limit.
      priority: Place in the queue, as of connect().
      timeout: Seconds for the service and the proxy to become ready, and again for placement.
      elastic_slices: Number of slices that may be missing at the start.
      max_lifetime: Seconds after which the connection of an attempt ends in any case; None: no
        limit.
      labels: Labels, such as the team, as of connect().
      proxy_options: Options of the proxy, as of connect().
      local_devices: Whether this machine's CPU can be used beside the proxy's devices.
      strict: Whether to refuse features that Google's proxies refuse; None: as SPS_STRICT.
      tune_allocator: Whether the program keeps freed memory, so that it fetches large arrays
        faster.
      cluster: A GKE cluster, as of connect().
      project: Its project.
      region: Its region or zone.
      context: A kubeconfig context, instead of `cluster`.
      namespace: The namespace of the service in the cluster.
      pathways_service: ``host:port`` of its resource manager; None: the only service.
      image: The program's image, in a cluster; None: the one that fits the service.
      workdir_bucket: Where the files of `workdir` go through in a cluster, for directories of up to
        1 GiB, compressed: ``gs://NAME[/PATH]`` or ``s3://NAME[/PATH]``. This process writes there
        as its user; the job's pods read there as theirs, or with variables of `env`. None: a
        Secret, for up to 512 KiB.

    Returns:
      The job. It may still wait for its slices.

    Raises:
      InvalidRequestError: An argument is invalid; `field` names it.
      ServiceNotReady: The service does not answer, or cannot be started.
    """
    request = checked_job(
        command,
        name=name,
        env={} if env is None else env,
        workdir=workdir,
        retries=retries,
        tune_allocator=tune_allocator,
        expected_tpu_instances=expected_tpu_instances,
        queue_timeout=queue_timeout,
        priority=priority,
        timeout=timeout,
        elastic_slices=elastic_slices,
        max_lifetime=max_lifetime,
        labels=labels,
        proxy_options=proxy_options,
        local_devices=local_devices,
        strict=strict,
        cluster=cluster,
        project=project,
        region=region,
        context=context,
        namespace=namespace,
        pathways_service=pathways_service,
        image=image,
        workdir_bucket=workdir_bucket,
    )
    home = make_job_home(request.session.service, Settings.load(), user_name())
    home.submit(request)
    return Job(request.name, request.session.service)


def checked_job(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    workdir: str | os.PathLike[str],
    **arguments: object,
) -> JobRequest:
    """Checks arguments of `submit` and of connect(), the program and its directory.

    A program in a cluster is not looked up on this machine, and gets none of its variables.

    Raises:
      InvalidRequestError: An argument is invalid; `field` names it.
    """
    is_here = home_of(*(arguments.get(name) for name in _OF_CLUSTERS)) == "embedded"
    inherited = _INHERITED if is_here else ()
    variables = {name: os.environ[name] for name in inherited if name in os.environ}
    variables["PYTHONUNBUFFERED"] = "1"
    variables |= check_environment(env)
    try:
        directory = Path(workdir).resolve()
    except FileNotFoundError as error:
        # (Only of a relative path, by getcwd(3).)
        raise InvalidRequestError(
            "workdir",
            str(workdir),
            "a directory that exists",
            message="the current directory was removed",
            hint="change to another, or pass the working directory of the job (--workdir)",
        ) from error
    except (TypeError, ValueError, RuntimeError, OSError):
        directory = None
    if directory is None or not directory.is_dir():
        raise InvalidRequestError("workdir", str(workdir), "a directory that exists")
    if arguments.get("strict") is None:
        # Imported here: importing this module must be fast.
        from shared_pathways_service.jax_client import is_strict  # noqa: PLC0415

        arguments["strict"] = is_strict(None)
    request = JobRequest.build(
        this_requester(),
        command,
        workdir=str(directory),
        environment=variables,
        umask=current_umask() if is_here else None,
        **arguments,
    )
    if is_here:
        _check_program(request.command[0], directory, variables.get("PATH"))
    return request


def _check_program(program: str, directory: Path, path: str | None) -> None:
    """Checks that a program exists, for a program with this working directory and PATH."""
    if os.sep in program:
        found = shutil.which(directory / program)
    else:
        found = shutil.which(program, path=path)
    if found is None:
        raise InvalidRequestError(
            "command", program, f"a program on PATH, or a file of {directory}"
        )
