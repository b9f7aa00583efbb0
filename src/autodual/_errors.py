"""Errors say what happened, where, why, and what to do about it."""

from __future__ import annotations


class AutodualError(Exception):
    """Base of every error that this library raises on purpose."""

    told = False
    """Whether another process, where it happened, tells the user."""


class ArgumentError(AutodualError, ValueError):
    """An argument has a value, shape, dtype or device that cannot be used; the message names the argument."""


class CaptureError(AutodualError, RuntimeError):
    """The model could not be turned into a graph; the message names the module path."""


class UnsupportedOperationError(CaptureError):
    """The model uses an operation that has no dual layer; the message says how to add one."""


class MemoryBudgetError(AutodualError, MemoryError):
    """The work does not fit the memory budget even when cut into its smallest pieces."""


class UnsoundError(AutodualError, TypeError):
    """A proof was asked for, but the bounds are only estimates."""


class ContradictionError(AutodualError, RuntimeError):
    """A certificate was contradicted by the model itself: a dual layer, an input set or an engine is wrong."""
