"""Every event, as a class: what the sinks of a connection and of a training run receive.

`base` has what all of them have and the table of their names, `codec` their flat form, which older
versions read and write. Each other module has the events of one part. No other folder spells an
event's name: it uses the class, or `Event.of` where a person gave the name.
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
