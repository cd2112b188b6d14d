"""Commands that call the resource manager, such as events, explain, usage, cordon, reserve."""
