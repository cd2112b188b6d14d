"""Random partitions between resource manager, workers and proxies, and what they must keep."""
