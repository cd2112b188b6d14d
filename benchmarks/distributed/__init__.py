"""The speed of the distributed engine, with executors as processes of this machine."""
