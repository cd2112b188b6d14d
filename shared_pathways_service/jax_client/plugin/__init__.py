"""The plug-in and its shims: files that work without this package.

- `plugin`: JAX's entry point
- `local`: adds this machine's CPU to a proxy
- `callbacks`, `callback_wire`, `callback_stream`: Python callbacks at run time
- `compile_calls`: functions that XLA calls at compile time
- `executables`, `host_copies`, `workarounds`: operations that JAX's proxy client refuses
- `forked`: errors in forked children

`jax_client.standalone` copies these files, into a package of another name, for interpreters without
this package. So they need the standard library and JAX only, and import each other by relative
imports.
"""
