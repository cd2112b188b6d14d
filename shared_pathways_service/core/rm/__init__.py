"""The resource manager's decisions: who gets which slices, as events in and instructions out.

``core`` is the door: `ResourceManagerCore`. ``ledger`` holds what is so, ``scheduler`` decides who
is placed next, ``workers`` and ``tenants`` say what each event means, ``recovery`` what a restart
left; ``messages`` and ``status`` are the data that cross the boundary. No gRPC, no disk, no clock:
those are ``servers.resource_manager``.
"""
