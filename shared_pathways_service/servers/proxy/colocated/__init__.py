"""Python beside the devices: the functions of `jax.experimental.colocated_python`.

- `python_process`: the process of a session in which its functions run
- `child`: what runs in it
- `python_messages`: the messages between the two
- `strings`: arrays of strings, which XLA does not have
"""
