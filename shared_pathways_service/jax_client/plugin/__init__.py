"""The plug-in and its shims: files that work without this package.

`jax_client.standalone` copies these files for interpreters without the package, so they import only
each other, by relative imports. `plugin` is JAX's entry point.
"""
