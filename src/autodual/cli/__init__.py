"""The command line, in thin files. Everything that a command does is a function of the library.

Files that declare a command, and `options` and `terminal`, import PyTorch and what needs it inside functions: help and refused options
come at once.
"""
