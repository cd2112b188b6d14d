"""Trains through disruptions at random moments."""
