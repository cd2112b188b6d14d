"""The attempts of submitted jobs."""
