"""Where the service lives: `embedded` (processes of this machine) behind the interface of `base`.

The agent knows homes by that interface only; it decides nothing here.
"""
