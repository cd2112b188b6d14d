"""One module or folder per policy, such as placement order, backfill, preemption and reservations.

Each consumes changes of the book (`scheduling.book`) and returns actions; `policy` says how. A new
policy is a new module here, and an entry of `scheduling.core.POLICIES`.
"""
