"""Every event, as a class: the input of the sinks of a connection and of a training run.

- `base`: common fields, and the table of names and classes
- `codec`: the flat form of events, which older versions read and write
- `session`, `tenants`, `proxy`, `manager_events`, `supervisor`, `training`: the events of one part
  each
- `recorded_decisions`: decisions in the resource manager's history

No other folder spells an event's name: it uses the class, or `Event.of` for a name from a person.
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
