"""What engines behind HTTP share: client, server processes, counters, the draft service."""
