"""Functions of the C library that Python does not have in all its versions."""

from __future__ import annotations

import ctypes
import os

__all__ = ["call", "enter_namespace"]

_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object, subject: str = "") -> None:
    """Calls a function that returns 0.

    Args:
      name: Its name.
      arguments: Its arguments.
      subject: Named in an error.

    Raises:
      OSError: It returns something else; the error names the function and the subject.
    """
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        of_subject = f" ({subject})" if subject else ""
        raise OSError(number, f"{name}{of_subject}: {os.strerror(number)}")


def enter_namespace(descriptor: int, what: str, kind: int = 0) -> None:
    """Moves this thread into a namespace.

    Args:
      descriptor: A descriptor of the namespace.
      what: The namespace, for the error.
      kind: A CLONE_NEW... flag that it must be of; 0: any.

    Raises:
      OSError: The system refuses it; the error names the namespace and the reason.
    """
    call("setns", descriptor, kind, subject=what)
