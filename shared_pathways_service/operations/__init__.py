"""Operations on services in a cluster: deploy, drain, hotswap, disrupt.

- `deployment`: creates and deletes services
- `draining`: waits for the end of connections
- `hotswap`: measures how JobSets move between node pools
- `slice_marks`: cordons, drains and uncordons slices
- `usage`: slice-hours from a resource manager's history
- `disruptions`: the failures of `sps chaos`
- `service_readers`: reads a service of each home, for commands
- `cluster_access`, `manager_link`: access to the cluster and to the resource manager

No terminal, no options: commands (`cli.commands`) and other programs call these.
"""
