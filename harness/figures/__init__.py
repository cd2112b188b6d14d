"""Figures in the documentation, which is written from the kept results (`scripts/figures`)."""
