"""Commands about services in a cluster: deploy, upgrade, render, hotswap, verify, testbed."""
