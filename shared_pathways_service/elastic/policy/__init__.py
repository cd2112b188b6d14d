"""What elastic training decides: options, triage, slice health, when to save. Pure."""
