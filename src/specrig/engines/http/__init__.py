"""Engines behind HTTP: the client, starting a server, its counters. No engine by itself."""
