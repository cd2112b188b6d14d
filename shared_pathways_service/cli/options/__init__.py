"""Options that several commands share, as dataclasses.

- `option_groups`: adds groups of options to commands
- `cluster_options`, `service_options`: a cluster, and a service in it
- `run_options`, `serve_options`, `policy_options`: options of `sps run` and `sps serve`
- `draining_options`: options of commands that need a service without tenants
"""
