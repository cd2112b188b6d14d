"""Selects victims so that a waiting tenant of higher priority can start.

A waiting tenant that is at the head of the line of every type that it wants, and whose priority is
higher than that of running tenants, may have some of these preempted: as few as it takes, the
lowest priority first, of equal ones the youngest, and only if it can start by that. The victims are
given notice. When the grace is over their slices go to the tenant at once, and they wait in the
queue, at the place that they had when they came, and are placed anew.

A plan is a promise. Free slices that it counts on, and slices that a victim leaves early, are kept
for the tenant, and no victim is under notice for two plans. So the next in line may plan as well,
around it. Slices that come free meanwhile may make victims superfluous: their notice is withdrawn,
as it is when the tenant that they make room for goes away. A plan that loses slices meanwhile takes
other victims, or is given up.

An event costs what it changes: only the first tenant without a promise is looked at, in pools whose
free slices, holders or lines changed, and its victims are found by an index.

`preemption` is the policy, `plans` its state, `victims` the index, and `preemption_actions` what it
returns.
"""
