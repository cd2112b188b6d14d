"""The boundary between a proxy and what computes for it.

- `interface`: devices with their arrays and programs, whoever computes

Its implementation is `xla.xla.XlaClient`: XLA in this process.
"""
