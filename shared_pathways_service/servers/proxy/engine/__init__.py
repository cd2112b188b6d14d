"""Programs, the compiler and its cache, shared by all sessions.

- `engine`: devices, slices, memory and threads that sessions share
- `programs`, `compiled_program`: programs, and how they run
- `compilations`: compiles programs by turns of the sessions
- `compile_cache`: compiled programs on disk
"""
