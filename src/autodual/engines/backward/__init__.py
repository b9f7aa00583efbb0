"""Engines that pull rows back from a node to the input."""
