"""Reports errors of `sps`: one line on standard error, and an exit code for the kind of error."""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

import typer

from shared_pathways_service import errors
from shared_pathways_service.cli.display.output import print_error, print_log_tail
from shared_pathways_service.errors import ProxyFailed, SharedPathwaysError

__all__ = [
    "DONE",
    "FAILED",
    "HUNG_UP",
    "INTERRUPTED",
    "NOT_READY",
    "OWN_FAILURE",
    "TERMINATED",
    "USAGE",
    "exit_code",
    "print_failure",
    "print_system_error",
    "reporting_errors",
]

P = ParamSpec("P")

#: Errors of a write to an open file.
_OF_WRITES = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}

DONE = 0
FAILED = 1
USAGE = 2
NOT_READY = 3
CAPACITY = 4
DENIED = 5
INTERRUPTED = 130
TERMINATED = 143
HUNG_UP = 129
#: Failures of `sps` itself where other codes are a program's, as of other programs that run one.
OWN_FAILURE = 125

#: A class not listed has the code of its nearest base.
_CODES: dict[type[SharedPathwaysError], int] = {
    SharedPathwaysError: FAILED,
    errors.InvalidRequestError: USAGE,
    errors.ServiceNotFound: NOT_READY,
    errors.ServiceNotReady: NOT_READY,
    errors.CapacityError: CAPACITY,
    errors.AccessDenied: DENIED,
}


def exit_code(error: SharedPathwaysError) -> int:
    """Returns the exit code of `sps` for an error."""
    return next(_CODES[cls] for cls in type(error).__mro__ if cls in _CODES)


def print_failure(error: SharedPathwaysError) -> None:
    """Prints an error with its hint and, of a proxy that failed, the end of its log."""
    hint = f" hint: {error.hint}" if error.hint else ""
    print_error(f"{error.message}{hint}")
    if isinstance(error, ProxyFailed):
        print_log_tail(error.log_tail)


def print_system_error(error: OSError) -> None:
    """Prints an error of the system, such as a file's mode or a full disk.

    It names the file, unless that was open: then it is the output.
    """
    if error.filename is None and error.errno in _OF_WRITES:
        print_error(f"cannot write the output: {error.strerror}")
    else:
        print_error(str(error))


def reporting_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Makes a command report its errors, and exit with the code of the error."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except SharedPathwaysError as error:
            print_failure(error)
            raise typer.Exit(exit_code(error)) from error
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader of our output (`head`, say) has closed it: discard the rest.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(FAILED) from None
        except OSError as error:
            print_system_error(error)
            raise typer.Exit(FAILED) from error

    return wrapped
