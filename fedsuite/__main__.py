"""``python -m fedsuite`` is the ``fedsuite`` command."""

from fedsuite.cli import main

main()
