"""Replaces the kubelet: runs the pods of the testbed's nodes as local processes.

Kubernetes objects are plain dictionaries. `images`, `environment`, `pod_status` and `nodes` are
pure; `agent` watches, `pod` manages one pod, `container` runs one process.
"""
