"""Draw a study's figures: SVG and PNG for a page, PDF in the widths of a paper."""
