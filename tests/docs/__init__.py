"""Documentation: its reference pages made of the code, its blocks run, its links followed.

`scripts/docs --reference` writes what `reference.py` makes; `not_run.toml` names the blocks that no
test runs, each with its reason.
"""
