"""The relay's program; see :mod:`fedsuite.deploy.relay.relay`."""

import sys

from fedsuite.cli.command import main
from fedsuite.deploy.relay.relay import serve

if __name__ == "__main__":
    main(lambda: serve(*sys.argv[1:3]))
