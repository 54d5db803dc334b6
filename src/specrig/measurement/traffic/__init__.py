"""Servers under load: the loops that send requests, the ladder of loads, and its records."""
