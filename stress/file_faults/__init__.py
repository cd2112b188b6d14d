"""Each file operation of clients, agents, services and training fails once."""
