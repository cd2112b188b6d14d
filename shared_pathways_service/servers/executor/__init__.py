"""The executor: owns the devices of one host for one tenant, and serves that tenant's proxy.

- `flags`: its flags
- `executor_service`: what the calls of the proxy, and of other executors, do
- `executor_server`: chooses their server: `core_service`, or `public_service`
- `executor_commands`: decides what runs when
- `executor_engine`: the interface of what computes
- `opened_clients`: the engine of XLA's clients
- `exchange`: parts of arrays on their way to other executors
- `held`: clients, arrays, programs and runners, also before they are there

It is started for a grant, ends with its proxy's stream, and keeps nothing: the next tenant gets
another process.
"""
