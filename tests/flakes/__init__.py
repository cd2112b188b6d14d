"""Failures that passed when they ran again: each is to be explained or fixed."""
