"""Running cells and keeping what was measured."""
