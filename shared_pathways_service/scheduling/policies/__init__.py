"""One module per policy, such as placement order, backfill, preemption and reservations.

Each reads the book (`scheduling.book`) and decides. A new policy is a new module here.
"""
