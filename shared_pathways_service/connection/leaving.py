"""Chooses the error that ends a block whose proxy ended first."""

from __future__ import annotations

from collections.abc import Iterator

from shared_pathways_service.errors import SharedPathwaysError

__all__ = ["is_of_jax", "report", "is_of_lost_proxy"]

#: Words at the beginning or inside of JAX's errors after the loss of the proxy.
_GONE = ("UNAVAILABLE", "CANCELLED")
_CLIENT = "IFRT proxy"
#: Maximum number of links followed from an error to its causes.
_LINKS = 10


def is_of_jax(error: BaseException) -> bool:
    """Returns whether JAX's runtime raised the error, by its name, so that JAX is not imported."""
    return type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError")


def is_of_lost_proxy(error: BaseException) -> bool:
    """Returns whether the error, or one of its causes, is JAX's error for a lost proxy."""
    for link in _chain(error):
        text = str(link)
        if is_of_jax(link) and (text.startswith(_GONE) or _CLIENT in text):
            return True
    return False


def report(error: BaseException, failure: SharedPathwaysError) -> None:
    """Reports why the proxy ended, in addition to the error that ended the block.

    Raises `failure` from JAX's error. Other errors are the user's and only get a note.
    """
    if is_of_jax(error):
        raise failure from error
    error.add_note(f"Meanwhile: {failure}")


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(_LINKS):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__
