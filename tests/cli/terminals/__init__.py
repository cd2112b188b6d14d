"""Programs at a terminal, alone and as `sps run` runs them: everything must be the same."""
