"""Where a model comes from and what is known of it before its weights are read."""
