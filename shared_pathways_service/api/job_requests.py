"""Submitted jobs: their requests, checked before anything starts, and their states. Pure.

A job is a program with a request for slices. The service runs it, so that it outlives the process
that submitted it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from shared_pathways_service.api.request_fields import (
    check_image,
    check_object_store,
    check_proxy_job_name,
)
from shared_pathways_service.api.requests import ClientOptions, Requester, SessionRequest
from shared_pathways_service.api.validation import DNS_LABEL_LIMIT, check_bool, check_int
from shared_pathways_service.errors import InvalidRequestError

__all__ = [
    "ACTIVE_STATES",
    "JobRequest",
    "JobState",
    "JobStatus",
    "check_environment",
    "default_job_name",
]

JobState = Literal["queued", "running", "retrying", "succeeded", "failed", "cancelled", "lost"]
#: States of jobs that have not ended.
ACTIVE_STATES: Final = ("queued", "running", "retrying")

_MOST_RETRIES: Final = 1_000_000
#: Bytes of a job's command and environment, which travel in one message.
_LONGEST_TEXTS: Final = 1 << 20
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Variables that a job's program gets from the service.
_OWN_PREFIX: Final = "SPS_JOB_"
#: Programs that run another one, for which a job is named.
_INTERPRETER: Final = re.compile(r"(python|pypy)[0-9.]*|(ba|da|z)?sh")
_SCRIPT: Final = re.compile(r"(?:[^\s]*/)?([^\s/]+)\.(?:py|sh)")
_NAME_ROOM: Final = DNS_LABEL_LIMIT - 2 * len("-xxxxx")


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A checked request for a job.

    Attributes:
      session: The request for slices; its name is the job's.
      command: The program and its arguments.
      workdir: The program's working directory, an absolute path.
      environment: All of the program's variables, except those for JAX; may contain secrets.
      retries: How often the program may be started again.
      tune_allocator: As of `sps run`.
      image: The program's container image, in a cluster; empty: the one that fits the service.
      workdir_bucket: Where the files of `workdir` go through, in a cluster; empty: a Secret.
      umask: The program's umask, on this machine; None: that of the service.
    """

    session: SessionRequest
    command: tuple[str, ...]
    workdir: str
    environment: Mapping[str, str] = dataclasses.field(repr=False)
    retries: int = 0
    tune_allocator: bool = True
    image: str = ""
    workdir_bucket: str = ""
    umask: int | None = None

    @property
    def name(self) -> str:
        """The job's name, which is also its tenant's."""
        return self.session.name

    @classmethod
    def build(
        cls,
        requester: Requester,
        command: object,
        *,
        name: object = None,
        workdir: str,
        environment: Mapping[str, str],
        retries: object = 0,
        tune_allocator: object = True,
        image: object = None,
        workdir_bucket: object = None,
        umask: int | None = None,
        **keywords: object,
    ) -> JobRequest:
        """Checks the arguments of submit(); `keywords` are those of connect().

        Raises:
          InvalidRequestError: A value is not valid; `field` names it.
        """
        words = _command(command)
        made = default_job_name(words, requester.suffix) if name is None else name
        job_name = check_proxy_job_name(made, field="name")
        session = SessionRequest.build(requester, proxy_job_name=job_name, **keywords)
        return cls(
            session=session,
            command=words,
            workdir=_text("workdir", workdir),
            environment=check_environment(environment),
            retries=check_int("retries", retries, low=0, high=_MOST_RETRIES),
            tune_allocator=check_bool("tune_allocator", tune_allocator),
            image=_of_cluster(session, "image", image, check_image),
            workdir_bucket=_of_cluster(
                session, "workdir_bucket", workdir_bucket, check_object_store
            ),
            umask=umask,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the request as plain data, with its environment."""
        client = self.session.client
        return {
            "session": self.session.to_json(),
            "client": {"local_devices": client.local_devices, "strict": client.strict},
            "command": list(self.command),
            "workdir": self.workdir,
            "environment": dict(self.environment),
            "retries": self.retries,
            "tune_allocator": self.tune_allocator,
            "umask": self.umask,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobRequest:
        """Makes the request from plain data of `to_json`, and checks what is the job's own.

        Raises:
          InvalidRequestError: It is not the data of a valid request.
        """
        try:
            session = SessionRequest.from_json(data["session"])
            client = ClientOptions.check(**data["client"])
            request = cls(
                session=dataclasses.replace(session, client=client),
                command=_command(data["command"]),
                workdir=_text("workdir", data["workdir"]),
                environment=check_environment(data["environment"]),
                retries=check_int("retries", data["retries"], low=0, high=_MOST_RETRIES),
                tune_allocator=check_bool("tune_allocator", data["tune_allocator"]),
                umask=_umask(data.get("umask")),
            )
        except InvalidRequestError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            # (Not the data, which may contain secrets.)
            raise InvalidRequestError(
                "job", type(error).__name__, "a job as this release describes it"
            ) from None
        check_proxy_job_name(request.name, field="name")
        return request


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The state of a submitted job.

    Attributes:
      name: Its name, which is also that of its connection.
      home: Where it runs: ``embedded`` or ``kubernetes``.
      state: ``queued`` (waits for its slices), ``running``, ``retrying`` (waits for its next
        attempt), or how it ended: ``succeeded``, ``failed``, ``cancelled``, ``lost`` (its service
        ended while it was active).
      command: The program and its arguments.
      workdir: The program's working directory.
      slices: Requested slices by instance type; empty: one of the service's first type.
      attempt: How often it was started.
      retries: How often it may be started again after the first attempt.
      submitted: When it was submitted, RFC 3339.
      started: When its program was last started; None: not yet.
      ended: When it ended; None: it is active.
      exit_code: Exit code of its last attempt, 128 + n for signal n; None: there is none.
      reason: Why it is in this state, in words; may be empty.
      host: The machine whose embedded service runs it; empty in a cluster, or if it is unknown.
    """

    name: str
    home: str
    state: JobState
    command: tuple[str, ...]
    workdir: str
    slices: Mapping[str, int]
    attempt: int
    retries: int
    submitted: str
    started: str | None
    ended: str | None
    exit_code: int | None
    reason: str
    host: str = ""

    @property
    def is_active(self) -> bool:
        """Whether it has not ended."""
        return self.state in ACTIVE_STATES


def default_job_name(command: Sequence[str], suffix: str) -> str:
    """Returns ``PROGRAM-SUFFIX``, for ``python train.py`` ``train-SUFFIX``."""
    program = command[0].rpartition("/")[2]
    if _INTERPRETER.fullmatch(program):
        scripts = filter(None, map(_SCRIPT.fullmatch, command[1:]))
        program = next((script[1] for script in scripts), program)
    label = re.sub(r"[^a-z0-9]+", "-", program.lower()).strip("-")[:_NAME_ROOM].strip("-")
    return f"{label or 'job'}-{suffix}"


def check_environment(variables: object, *, field: str = "env") -> Mapping[str, str]:
    """Returns variables of a program; an error names a variable, and never shows its value."""
    if not isinstance(variables, Mapping):
        raise InvalidRequestError(field, type(variables).__name__, "a mapping of names to texts")
    for name, value in variables.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise InvalidRequestError(field, name, "names of letters, digits and '_'")
        if name.startswith(_OWN_PREFIX):
            raise InvalidRequestError(
                field, name, f"names that do not begin with {_OWN_PREFIX}, which the service sets"
            )
        if not isinstance(value, str) or "\0" in value:
            raise InvalidRequestError(field, name, "values that are texts without NUL characters")
    if sum(len(name) + len(value) for name, value in variables.items()) > _LONGEST_TEXTS:
        raise InvalidRequestError(
            field, f"{len(variables)} variables", f"at most {_LONGEST_TEXTS:,} characters in all"
        )
    return dict(variables)


def _command(value: object) -> tuple[str, ...]:
    expected = "a program and its arguments, e.g. ['python', 'train.py']"
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidRequestError("command", value, expected)
    words = tuple(value)
    if not words or not words[0]:
        raise InvalidRequestError("command", list(words), expected)
    for word in words:
        _text("command", word)
    if sum(map(len, words)) > _LONGEST_TEXTS:
        raise InvalidRequestError(
            "command", f"{len(words)} words", f"at most {_LONGEST_TEXTS:,} characters in all"
        )
    return words


def _of_cluster(
    session: SessionRequest, field: str, value: object, check: Callable[..., str]
) -> str:
    if value is None:
        return ""
    if session.service.home != "kubernetes":
        raise InvalidRequestError(
            field, value, "None: programs of the embedded service run on this machine"
        )
    return check(value, field=field)


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise InvalidRequestError(field, value, "a text without NUL characters")
    return value


def _umask(value: object) -> int | None:
    """Checks a umask; clients of earlier releases send none."""
    return None if value is None else check_int("umask", value, low=0, high=0o777)
