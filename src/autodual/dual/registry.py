"""The registry that the shipped dual layers, and yours, are in."""

from __future__ import annotations

from autodual.graph.registry import Registry

REGISTRY = Registry()
register = REGISTRY.register
rewrite = REGISTRY.rewrite
