"""Wire protocols: .proto files, the code generated from them, and helpers.

`scripts/generate_protos` makes the generated modules, which are committed; a test compares them.
"""
