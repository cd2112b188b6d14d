"""``%sps``: the commands of `sps` in a notebook (``%load_ext shared_pathways_service``).

- `sps_magic`: the magic: which command a line names, its help, and how its errors are shown.
- `notebook_commands`: the commands that act in the notebook's own process: connect, release.
- `child_commands`: runs all other commands of `sps` as children of the kernel.
- `child`: the program of such a child, which ends with the kernel.
- `page`: the page of `sps ui`, for as long as the kernel lives.
- `tab_completion`: completes commands, options and names.
"""
