"""The version of the package; records of runs and certificates name it."""

__version__ = "0.2.0"
