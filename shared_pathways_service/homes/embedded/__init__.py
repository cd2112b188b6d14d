"""The home on this machine: finds or starts the embedded service, which runs proxies."""
