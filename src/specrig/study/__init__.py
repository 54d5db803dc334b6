"""A study: what to run, typed and checked. No torch here."""
