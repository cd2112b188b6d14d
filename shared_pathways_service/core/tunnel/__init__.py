"""What of a port-forward can be decided without I/O: frames, and when to dial again."""
