"""The Lease of a service in its cluster, by which one head decides at a time.

`lease_terms` decides when a head may take it and act on it, and is pure; `head_lease` holds it.
"""
