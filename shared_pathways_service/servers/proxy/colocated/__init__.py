"""Functions of `jax.experimental.colocated_python` in the proxy.

- `executor_python`: calls the functions of a session on executors
- `session_python`: those processes, and the one beside the proxy
- `strings`: arrays of strings, which XLA does not have
"""
