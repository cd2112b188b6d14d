"""Asks slices whether they compute, and watches them.

What follows from the answers is decided in `elastic.policy`.
"""
