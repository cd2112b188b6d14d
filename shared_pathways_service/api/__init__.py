"""What users ask for: requests of connect(), instance types, priorities, options, limits.

Pure data and checks: each field is validated here, once, and errors name it. The functions that
users call are in `isc_pathways`; where settings come from is in `runtime.settings`.
"""
