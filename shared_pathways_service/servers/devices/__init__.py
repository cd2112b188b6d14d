"""The boundary between a proxy and what computes for it.

- `interface`: devices with their arrays and programs, whoever computes
- `dtypes`, `status_errors`: types of elements, and errors of requests

Its implementation is `xla.xla.XlaClient`: XLA in this process.
"""
