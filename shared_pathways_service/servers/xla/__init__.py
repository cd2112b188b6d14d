"""All use of XLA and jaxlib: clients, shardings, programs' text, flags, private parts.

- `xla`, `xla_executables`: `DeviceClient` and `Executable`, in this process
- `clients`, `platforms`: XLA's clients and devices
- `host_platforms`, `plugins`, `coordination`: those of executors
- `mlir`, `program_text`, `program_bytecode`, `program_costs`: programs
- `shardings`, `hlo_shardings`, `named_shardings`, `op_shardings`: shardings
- `xla_flags`, `file_options`, `debug_options`: flags and compile options
- `resharding`: pieces of arrays cut out of others
- `xla_internals`: private parts of jaxlib and JAX
"""
