"""Commands for services in a cluster, such as deploy, upgrade, render and verify; the testbed."""
