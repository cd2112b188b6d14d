"""Selects victims so that a waiting tenant of higher priority can start.

A waiting tenant at the head of the line of every type that it wants may preempt running tenants of
lower priority, but only if that lets it start: as few as possible, the lowest priority first, then
the youngest. The victims are given notice. When the grace period is over, their slices go to the
tenant at once, and the victims wait at their original places in the queue to be placed anew.

A plan is a promise. Free slices that it counts on, and slices that a victim leaves early, are
reserved for the tenant, and no victim is under notice for two plans. So the next tenant in line may
plan as well. Slices that become free meanwhile may make victims superfluous: their notice is
withdrawn, as it is when the preemptor goes away. A plan that loses slices meanwhile takes other
victims, or is given up.

An event costs only what it changes: only the first tenant without a promise is considered, in pools
whose free slices, holders or lines changed, and an index finds its victims.

- `preemption`: the policy
- `plans`: its state, the plans and the tenants under notice
- `victims`: the index of tenants that may be preempted
- `preemption_actions`: the actions that it returns
"""
