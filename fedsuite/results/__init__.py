"""Folders of runs: writing, reading, comparing and drawing."""
