"""What a result rests on: the code, the files and the machine."""
