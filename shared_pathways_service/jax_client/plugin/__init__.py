"""The plug-in and its shims: files that work without this package.

`jax_client.standalone` copies them for interpreters that do not have the package, so they import
each other by relative imports and nothing else of it. `plugin` is where JAX enters.
"""
