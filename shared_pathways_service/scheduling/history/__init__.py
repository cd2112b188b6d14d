"""What the history of decisions tells: explanations, expected waits, usage."""
