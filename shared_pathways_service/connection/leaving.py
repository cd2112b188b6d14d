"""Which error a block ends with, when its proxy has ended before it."""

from __future__ import annotations

from collections.abc import Iterator

from shared_pathways_service.errors import SharedPathwaysError

__all__ = ["is_of_jax", "tell", "tells_of_a_lost_proxy"]

#: How JAX's errors begin, or what they name, when the way to the proxy is gone.
_GONE = ("UNAVAILABLE", "CANCELLED")
_CLIENT = "IFRT proxy"
#: Links followed from an error to those it came of.
_LINKS = 10


def is_of_jax(error: BaseException) -> bool:
    """Whether the error is one that JAX's runtime raises; by name, so that JAX is not imported."""
    return type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError")


def tells_of_a_lost_proxy(error: BaseException) -> bool:
    """Whether the error, or one that it came of, is JAX's for a proxy that is gone."""
    for link in _chain(error):
        text = str(link)
        if is_of_jax(link) and (text.startswith(_GONE) or _CLIENT in text):
            return True
    return False


def tell(error: BaseException, failure: SharedPathwaysError) -> None:
    """Says why the proxy ended, beside the error that ended the block.

    Args:
      error: What ended the block.
      failure: Why the connection failed.

    Raises:
      SharedPathwaysError: `failure`, from JAX's error. Another error is the user's own: it goes on
        with a note.
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
