"""Maps each kind of request to its handler, and to the handles of its results."""

from __future__ import annotations

from shared_pathways_service.servers.proxy.session import (
    array_requests,
    client_requests,
    move_requests,
    program_descriptions,
    program_requests,
    transfer_requests,
)

__all__ = ["HANDLERS", "NAMED_RESULTS"]

#: The handler of each kind of request, by its field in IfrtRequest.
HANDLERS = {
    **client_requests.HANDLERS,
    **array_requests.HANDLERS,
    **move_requests.HANDLERS,
    **transfer_requests.HANDLERS,
    **program_requests.HANDLERS,
    **program_descriptions.HANDLERS,
}
#: The handles that a request names for its results, by the same field.
NAMED_RESULTS = {
    **array_requests.NAMED_RESULTS,
    **move_requests.NAMED_RESULTS,
    **transfer_requests.NAMED_RESULTS,
    **program_requests.NAMED_RESULTS,
}
