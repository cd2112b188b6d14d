"""The proxy: the server side of JAX's IFRT proxy protocol, one process per tenant.

From the wire inwards: `transport` (gRPC) over `session` (calls, requests and answers of a client)
over `engine` (programs) over `execution` (operations that settle once, on one executor for each
placement of a slice) over `xla` (the devices). `program_checks` refuses programs that would end
XLA's process, `callbacks` lets programs call functions of their client. `main` is the process;
`rm_link` receives from the resource manager where slices are. What lives elsewhere: who gets which
slice (the resource manager), health of hosts (workers).
"""
