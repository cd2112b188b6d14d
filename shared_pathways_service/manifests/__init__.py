"""Builds the objects that are created in a cluster: proxy Jobs, JobSets, PathwaysJobs, RBAC.

Pure: plain data in, plain objects out. `cluster_state` reads objects of a cluster.
"""
