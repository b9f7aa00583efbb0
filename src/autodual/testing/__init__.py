"""Shipped checks: does my dual layer, input set or engine keep its contract? And slow, exact answers to compare with."""

from autodual.testing.engines import check_engine as check_engine
from autodual.testing.engines import corners as corners
from autodual.testing.engines import exact_minimum as exact_minimum
from autodual.testing.engines import triangle_minimum as triangle_minimum
from autodual.testing.input_sets import check_input_set as check_input_set
from autodual.testing.layers import check_dual_layer as check_dual_layer
