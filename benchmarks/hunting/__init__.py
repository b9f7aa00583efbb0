"""Parts of benchmarks/hunt.py: cases as data, what is true of them, how they are drawn, made small and shown."""
