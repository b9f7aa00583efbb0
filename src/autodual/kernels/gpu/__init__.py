"""Triton programs: importing one needs Triton, so the operation of the same name in `autodual.kernels` does that when it runs."""
