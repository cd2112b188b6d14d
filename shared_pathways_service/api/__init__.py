"""Users' requests: connect()'s fields, instance types, priorities, options, limits.

Pure data and checks: each field is validated here, once, and errors name it. The functions that
users call are in `isc_pathways`, the settings in `runtime.settings`.
"""
