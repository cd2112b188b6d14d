"""What surrounds a user: shared and lost directories, faults of files, suspended machines."""
