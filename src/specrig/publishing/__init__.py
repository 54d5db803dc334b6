"""A finished study as a small folder that anybody can check: compressed records, and all that the present code makes of them."""
