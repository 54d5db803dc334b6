"""Make tables, figures and the report from a study's records and the files beside them. Nothing here needs torch."""
