"""Commands that ask or tell the resource manager: events, usage, cordon, reserve, replay."""
