"""Trained heads of a target: what feature-based drafters run between two target passes."""
