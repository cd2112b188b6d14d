"""What is put into a cluster and what is read out of one, as pure code over plain data.

Objects of the API are dictionaries as JSON has them (`Mapping[str, Any]`), never a client's model
classes. Here are manifests, and decisions on objects, log lines and answers; who asks the API
server, watches and dials lives in `kube/`, `tunnel/` and `homes/`.
"""
