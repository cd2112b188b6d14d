"""What all servers share: listening, admission, connections, the process's life."""
