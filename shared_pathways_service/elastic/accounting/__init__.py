"""Where the time of a run went: history, incidents, goodput, timeline. Pure."""
