"""The home on this machine: finds or starts the embedded service, and has it run proxies."""
