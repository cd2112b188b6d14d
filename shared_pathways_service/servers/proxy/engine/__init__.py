"""What all sessions share: programs, the compiler, its cache."""
