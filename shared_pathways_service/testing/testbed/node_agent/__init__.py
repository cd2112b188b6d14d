"""Replaces the kubelet: runs the pods of the testbed's nodes as local processes.

- `agent`: watches pods, and keeps the nodes alive
- `pod`, `container_life`, `container`: run a pod, a container, a process
- `images`, `environment`, `pod_status`, `nodes`: pure
- `endpoint`: the kubelet's endpoint; `volumes`: directories of pods

Objects of Kubernetes are plain dictionaries.
"""
