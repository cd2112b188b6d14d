"""One module per command of `sps`, in folders by what they are about.

`sessions` are a user's own connections, `manager` is what the resource manager answers or is told,
`clusters` are services in a cluster and the testbed, `training` is elastic training. `sps serve` is
`shared_pathways_service.serve`: the one command that runs a server in its own process.
"""
