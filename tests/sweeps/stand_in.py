"""Stands in for ``fedsuite``: runs the program that is its argument."""

import sys

exec(sys.argv[1])
