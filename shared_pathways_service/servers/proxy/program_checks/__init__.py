"""Checks clients' programs: refuses those that would crash XLA.

- `program_checks`: all checks of a program
- `custom_calls`, `call_attributes`, `cpu_kernels`, `xla_calls`: custom calls
- `call_graph`: recursion
- `sdy_attributes`, `sdy_calls`: Shardy's attributes and shardings
"""
