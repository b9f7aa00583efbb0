"""The engine that carries random projections of the generators forward."""
