"""The proxy: the server side of JAX's IFRT proxy protocol, one process per tenant.

- `main`: the process; `rm_link`: its session with the resource manager
- `link_server`: the far end of resumable links, as a child process
- `transport`: gRPC
- `session`: a client's calls, requests and answers
- `engine`: programs, the compiler, its cache
- `execution`: asynchronous work, one executor per placement of a slice
- `program_checks`: refuses programs that would crash XLA
- `callbacks`: calls of programs to functions of their client
- `colocated`: functions of `colocated_python`, in processes of their own

The resource manager decides about placement, and workers check hosts' health.
"""
