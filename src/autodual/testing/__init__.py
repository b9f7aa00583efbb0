"""Shipped checks: does my dual layer, input set or engine keep its contract? And slow, exact answers to compare with."""

from autodual.testing.layers import check_dual_layer as check_dual_layer
