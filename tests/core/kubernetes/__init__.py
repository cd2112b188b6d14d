"""Tests of the pure code over objects of Kubernetes."""
