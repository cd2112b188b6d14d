"""One module per command of `sps`, in folders by subject.

`sessions`: a user's own connections. `manager`: questions and instructions to the resource manager.
`clusters`: services in a cluster, and the testbed. `training`: elastic training. `sps serve` is
`shared_pathways_service.serve`, the one command that runs a server in its own process.
"""
