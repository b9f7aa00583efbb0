"""A data set certified, attacked and measured, by one process or several."""
