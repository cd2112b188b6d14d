"""Python beside the devices: the functions of `jax.experimental.colocated_python`.

For the proxy, and for executors, each of which starts such processes for the sessions of its proxy.

- `python_process`: calls the functions of a session, one after the other
- `child_process`: the process in which they run
- `child`: what runs in it
- `python_messages`: the messages between it and its parent
"""
