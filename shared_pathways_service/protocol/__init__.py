"""What goes over the wire: .proto files, the code generated from them, and helpers around it.

`scripts/generate_protos` makes the generated modules; they are committed, and a test compares them.
"""
