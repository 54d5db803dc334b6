"""Draft, target and coordinator as processes of their own that talk over HTTP."""
