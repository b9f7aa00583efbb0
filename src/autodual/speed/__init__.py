"""How fast this machine trains and certifies, beside the most that it can do."""
