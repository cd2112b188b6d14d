"""The output of commands: tables, lines, JSON, charts. Looks nothing up."""
