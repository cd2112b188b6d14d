"""What all servers share: listening, admission, health, connections, the process's life."""
