"""Programs that break things at random, or run for hours: `python -m stress.NAME`."""
