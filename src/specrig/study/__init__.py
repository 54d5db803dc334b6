"""A study says what to run. Here its config is read, typed and checked, and expanded into cells. No torch here."""
