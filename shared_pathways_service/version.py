"""The package's version: here once, for the build, the door and the servers alike."""

__all__ = ["__version__"]

__version__ = "0.1.0"
