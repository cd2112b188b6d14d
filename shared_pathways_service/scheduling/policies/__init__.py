"""One module per policy: placement order, backfill, preemption, idleness, cordon, reservations.

Each reads the book (`scheduling.book`) and decides; a new policy is a new module here.
"""
