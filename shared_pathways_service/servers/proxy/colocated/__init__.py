"""Python beside the devices: the functions of `jax.experimental.colocated_python`.

- `python_process`: calls the functions of a session, one after the other
- `child_process`: the process in which they run
- `child`: what runs in it
- `python_messages`: the messages between it and the proxy
- `strings`: arrays of strings, which XLA does not have
"""
