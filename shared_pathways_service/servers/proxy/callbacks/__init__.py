"""Python callbacks: programs call functions of their client at run time or at compile time.

- `callbacks`, `program_callbacks`, `pending_callbacks`: calls at run time
- `compile_callbacks`: calls at compile time
- `callback_calls`, `compile_calls`: checks of the custom calls
- `callback_messages`, `compile_messages`: messages to and from the client
"""
