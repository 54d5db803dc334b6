"""The report as HTML, as PDF and as a folder for papers."""
