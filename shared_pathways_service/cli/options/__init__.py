"""Options that several commands share, as dataclasses."""
