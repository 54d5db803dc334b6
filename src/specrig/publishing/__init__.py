"""Publish a finished study as a small folder that anybody can check: compressed records, and everything computed from
them.
"""
