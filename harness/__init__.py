"""What tests, benchmarks, stress and conformance share: servers, services, clients, checks."""
