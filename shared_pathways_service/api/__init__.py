"""What users ask for: requests of connect(), instance types, priorities, options, limits.

Pure data and checks: every field is validated here, once, with its name in the error. What is not
here: where settings come from (`runtime.settings`), and anything that carries a request out.
"""
