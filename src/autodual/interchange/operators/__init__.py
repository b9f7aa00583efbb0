"""One function per operator of ONNX: which modules it becomes. What the opsets changed is told apart here, and nowhere else."""

from autodual.interchange.operators import elementwise as elementwise
from autodual.interchange.operators import images as images
from autodual.interchange.operators import products as products
from autodual.interchange.operators import shapes as shapes
from autodual.interchange.operators.constants import FOLDERS as FOLDERS
from autodual.interchange.operators.table import READERS as READERS

OPERATORS = tuple(sorted(READERS))
"""Operators that are read where they depend on the input."""
