"""Commands for submitted jobs: programs that outlive the shell."""
