"""Requests of users: arguments of connect(), instance types, priorities, options, limits.

- `requests`: the request of a session; `tenant_requests`: its part for the tenant
- `instances`, `topology`, `slice_names`: slices and their types
- `priorities`: priorities by name or number
- `proxy_options`, `proxy_limits`: options and limits of a proxy
- `checks`: results of preflight checks
- `validation`: checks of single values

Pure data: each field is validated here, once. The functions that users call are in `isc_pathways`.
"""
