"""The texts of the stand-ins' logs: those that public sources show, and guesses.

They are written here in full, and not taken from this project's servers or from its parser of logs:
if a text here is right and the parser does not understand it, a test fails.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

__all__ = ["GUESSED", "PUBLISHED", "LogText"]

#: Google's page "Troubleshoot Pathways on cloud" (AI Hypercomputer), as of 2026-04-06.
_PAGE: Final = (
    "docs.cloud.google.com/ai-hypercomputer/docs/workloads/pathways-on-cloud/"
    "troubleshooting-pathways"
)
_UPSTREAM: Final = (
    "github.com/AI-Hypercomputer/pathways-utils, pathwaysutils/experimental/shared_pathways_service"
)
_README: Final = f"{_UPSTREAM}/README.md"
#: It searches the proxy's log for some words; the rest of each line is not public.
_SEARCHED: Final = f"{_UPSTREAM}/isc_pathways.py, _wait_for_placement(), searches for these words"
#: A user's guide to a shared service, in a fork of MaxText.
_GUIDE: Final = "'Running MaxText on the Shared Pathways Service (SPS)', 2026-06, section 8"
#: Lines that other programs of Google with the same signal handler have logged.
_HANDLER: Final = "logs of libtpu's process_state.cc, as quoted in issues of its users"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogText:
    """The text of a line.

    Attributes:
      text: A template of `str.format`.
      position: The position in the image's source, for glog's header; the default is no real one.
      source: Where the text is published; of a guess: what is known of it.
    """

    text: str
    source: str
    position: str = "pathways.cc:1"

    def line(self, **values: object) -> str:
        """Returns what follows glog's time and process in the line, for these values."""
        return f"{self.position}] {self.text.format(**values)}"


#: Public texts. Positions other than the default are public, too.
PUBLISHED: Final[Mapping[str, LogText]] = {
    "the proxy serves": LogText(
        text="IFRT proxy server started with status OK",
        position="proxy_server.cc:125",
        source=_PAGE,
    ),
    "the server serves": LogText(
        text="Pathways Server serving on [::]:{port}",
        position="server_lib.cc:1473",
        source=_PAGE,
    ),
    "slices are ready": LogText(
        text="*** {count}/{wanted} Pathways Slices Now Ready ***",
        position="multi_job_allocator.cc:1063",
        source=_PAGE,
    ),
    "the transport begins": LogText(text="MegaScale transport initialized.", source=_README),
    "the transport is ready": LogText(text="MegaScale transport init succeeded.", source=_README),
    "an argument": LogText(text="argv[{number}]: {argument!r}", source=_README),
    "the proxy waits": LogText(text="Waiting to acquire placements", source=_GUIDE),
    "a worker of another type": LogText(
        text="FAILED_PRECONDITION: The newly added instance does not match with the expected "
        "instances; this is currently not allowed. for job {job}",
        source="a user's report of a resource manager's refusal",
    ),
    "the bucket has no room for rules": LogText(
        text="INVALID_ARGUMENT: Permanent error, with a last message of Lifecycle matches_prefix "
        "cannot specify more than 50 prefixes per config.; Error while initializing persistent "
        "cache storage gcs",
        source=_PAGE,
    ),
    "the bucket is missing": LogText(
        text="Permanent error, with a last message of The specified bucket does not exist.; Error "
        "while initializing persistent cache storage gcs",
        source=_PAGE,
    ),
    "a signal": LogText(
        text="*** SIGTERM received by PID {pid} (TID {pid}) on cpu 0 from PID {sender}; stack "
        "trace: ***",
        source=f"{_PAGE} names SIGTERM; {_HANDLER}",
    ),
    "the default behavior": LogText(
        text="RAW: Raising signal 15 with default behavior",
        position="process_state.cc:807",
        source=_HANDLER,
    ),
}

#: Texts that no public source shows in full.
GUESSED: Final[Mapping[str, LogText]] = {
    "the proxy requests slices": LogText(text="Signaling to RM {address}", source=_SEARCHED),
    "a slice is placed": LogText(
        text="Transition slice {index} unplaced -> placed", source=_SEARCHED
    ),
    "a slice is lost": LogText(
        text="Transition slice {index} placed -> unplaced",
        source="by analogy with the line of a placed slice",
    ),
    "the request is refused": LogText(text="FAILED_PRECONDITION: {reason}", source=_SEARCHED),
    "the manager is unreachable": LogText(
        text="{reason}", source="the text of a failed call of gRPC's C++ clients"
    ),
    "memory is exhausted": LogText(
        text="RESOURCE_EXHAUSTED: {reason}", source=f"{_PAGE} names RESOURCE_EXHAUSTED"
    ),
    "the proxy ends": LogText(text="{reason}", source="no source: this project's own reason"),
}
