"""A resumable link: local connections that outlive the connections that transport them.

The standard library alone: the far end also runs as a sidecar of a proxy whose image is not ours.

- `link_state`: one end of a session, without I/O, and its `link_events`
- `link_connections`, `link_streams`, `windows`, `pacing`, `link_frames`, `control_frames`,
  `control_queue`: its parts
- `token_handshake`: mutual proof of the session's token
- `http2_pings`: answers gRPC's PINGs while the way is interrupted
- `early_copies` and `early_answers` (with `buffer_lookups`, `http2_frames`, `ifrt_messages`): small
  host buffers, which JAX reads in one round trip in place of two
- `near_end` (with `near_handshake`), `far_end`: the two ends
- `near_uploads`: closes JAX's connections so that no two uploads fail together
- `link_end`, `local_sockets`, `connectors`, `carriers`: what they share
- `python -m shared_pathways_service.tunnel.link`: the far end as a program
"""
