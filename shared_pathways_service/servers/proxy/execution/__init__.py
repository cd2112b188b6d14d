"""Asynchronous work: operations, their values, and one executor per placement of a slice."""
