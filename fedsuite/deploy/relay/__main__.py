"""The relay's program; see :mod:`fedsuite.deploy.relay.relay`."""

import sys

from fedsuite.core.errors import FedsuiteError, printable
from fedsuite.deploy.relay.relay import serve

if __name__ == "__main__":
    try:
        serve(*sys.argv[1:3])
    except FedsuiteError as error:
        sys.exit(f"fedsuite: error: {printable(str(error))}")
