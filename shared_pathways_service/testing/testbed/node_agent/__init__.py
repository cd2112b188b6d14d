"""The kubelet's part: pods that are bound to the testbed's nodes run here as local processes.

Objects of Kubernetes' are plain dictionaries. `images`, `environment`, `pod_status` and `nodes` are
pure; `agent` watches, `pod` lives one pod's life, `container` runs one process.
"""
