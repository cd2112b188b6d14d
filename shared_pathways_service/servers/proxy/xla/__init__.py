"""All use of XLA and jaxlib: clients, shardings, programs' text, flags, private parts."""
