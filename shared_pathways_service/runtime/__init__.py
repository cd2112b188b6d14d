"""Utilities for clients and servers on one machine: settings, process identity, logs, limits.

Independent of services, slices and JAX, except for `runtime.embedded`: the files of the embedded
service.
"""
