"""Builds the objects that are created in a cluster: proxy Jobs, JobSets, PathwaysJobs, RBAC.

- `service_jobset`: the JobSet of a service; `service_inputs`: its inputs
- `proxy_job`: the Job of a proxy; `lifetime`: its deadline
- `pathways_job`: converts a PathwaysJob to a JobSet
- `rbac`, `permissions`: roles and permissions
- `names`, `image_names`, `machine_types`: names and types

Pure: plain data in, plain objects out. `cluster_state` reads objects of a cluster.
"""
