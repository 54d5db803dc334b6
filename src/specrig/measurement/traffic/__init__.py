"""Servers under load: the loops that send requests, the sweep over loads, and its records."""
