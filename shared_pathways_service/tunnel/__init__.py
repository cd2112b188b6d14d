"""Forwards a local socket to a port of a pod, through the API server's port-forward.

- `relay`: one port-forward for each local connection, which ends with it
- `resumable_relay`: a link for all of them, over port-forwards (`websocket_carrier`)
- `local_listener`: listens on a local socket
- `port_forward`: a WebSocket that was taken over
- `pump`: connects one socket with one port-forward
- `websocket`, `frames`: the protocols, without I/O
- `liveness`: decides when the far end is dead
- `places`: directories for local sockets
- `link`: a folder: connections that outlive the WebSockets that transport them

The caller connects the tunnel to the API server; `kube` has addresses and credentials.
"""
