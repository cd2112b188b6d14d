"""For tests, of this project and of its users: fakes under contract, schemas, leak checks."""
