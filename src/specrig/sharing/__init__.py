"""Share finished studies: publish one as a small folder that anybody can check, verify it, compare two."""
