"""Other projects' code through a proxy: test suites, MaxText, other releases of JAX."""
