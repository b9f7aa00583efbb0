"""The version of the package; records of runs and certificates name it."""

__version__ = "0.1.0"
