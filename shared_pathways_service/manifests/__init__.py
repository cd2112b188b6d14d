"""Objects that are created in a cluster: proxy Jobs, JobSets, PathwaysJobs, RBAC.

Pure: plain data in, plain objects out. What is read from a cluster is in `cluster_state`.
"""
