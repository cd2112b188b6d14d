"""How long this process waits for other processes, servers and machines before it gives up.

- `timeouts`: the table of all time-outs
- `factor`: the factor that scales them, and types `Timeout` and `Deadline`
- `slowness`: estimates the factor from measurements (pure)
- `within`: the time-out of a block of asynchronous code

A link's far end (`homes.kubernetes.link_archive`) and the plug-in (`jax_client.standalone`) also
run without the rest of this package. So these files need the standard library only, and import
each other by relative imports.
"""
