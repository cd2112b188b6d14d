"""One module or folder per policy, such as placement order, backfill, preemption and reservations.

`policy` is their base: each consumes changes of the book and returns actions. A new policy is a new
module here, and an entry of `scheduling.core.POLICIES`.

- `placement_order`: the order in which free slices are given, ranked by `aging`
- `backfill`: starts that do not delay the head of a line
- `preemption`: selection of victims for a tenant of higher priority
- `reservations`, `reserved_slices`: slices reserved for a user or a team
- `idleness`, `cordon`: idle tenants, and slices taken out of service
- `spares`, `queue_refusals`, `team_limits`: requests that are refused
"""
