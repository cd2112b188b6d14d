"""Event classes, whose instances the sinks of a connection and of a training run receive.

`base` has their common part and the table of their names, `codec` their flat form, which older
versions read and write. Each other module has the events of one component. Other packages do not
spell events' names: they use the class, or `Event.of` for a name given by a person.
"""

from shared_pathways_service.events import session, tenants
from shared_pathways_service.events.base import LAST_MOMENT, Event, OtherEvent, rfc3339
from shared_pathways_service.events.codec import Scalar

__all__ = [
    "LAST_MOMENT",
    "Event",
    "OtherEvent",
    "Scalar",
    "rfc3339",
    "session",
    "tenants",
]
