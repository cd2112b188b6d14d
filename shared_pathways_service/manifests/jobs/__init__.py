"""Objects of submitted jobs."""
