"""The kubelet's part: pods that are bound to the testbed's nodes run here as local processes.

- `agent`: watches pods, and keeps the nodes alive
- `pod`, `container_life`, `container`: run a pod, a container, a process
- `images`, `environment`, `pod_status`, `nodes`: pure
- `endpoint`: the kubelet's endpoint; `volumes`: directories of pods

Objects of Kubernetes are plain dictionaries.
"""
