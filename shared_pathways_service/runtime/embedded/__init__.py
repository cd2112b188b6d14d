"""The embedded service's files: names, state file, log directories, environment of servers.

- `file_names`: names of the files
- `state_file`: the file by which clients find the service
- `log_directory`: logs, one directory per start
- `server_environment`: the environment of a server

Its supervisor (`servers.supervisor`) writes them; homes and commands read them.
"""
