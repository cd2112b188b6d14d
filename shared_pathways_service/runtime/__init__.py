"""What clients and servers share on one machine: settings, process identity, logs, limits.

Nothing here knows of services, slices or JAX; the files of the embedded service are in
`runtime.embedded`.
"""
