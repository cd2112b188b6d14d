"""All use of XLA and jaxlib: clients, shardings, programs' text, flags, private parts.

- `xla`, `clients`, `platforms`: XLA's clients and devices
- `xla_executables`: compiled programs
- `mlir`, `program_text`, `program_bytecode`, `program_costs`: programs
- `shardings`, `hlo_shardings`, `named_shardings`, `op_shardings`: shardings
- `xla_flags`, `file_options`: flags and compile options
- `xla_internals`: private parts of jaxlib and JAX
"""
