"""What of a port-forward can be decided without I/O: frames, and whether the other end lives."""
