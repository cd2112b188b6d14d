"""Tools for tests of this project and of its users.

- `faults`: faults for elastic training
- `attacks`: clients that try to exhaust a server
- `fake_home`: a home without a service
- `google`, `google_monitoring`, `google_images`: stand-ins for Google's services and images
- `testbed`: a Kubernetes control plane on this machine
"""
