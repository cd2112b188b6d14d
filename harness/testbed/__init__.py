"""Services and clients on the testbed, and pytest's fixtures of it."""
