"""Layers of the tests: pure, local, with a control plane, and long."""
