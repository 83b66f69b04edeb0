"""`python -m seqloom` runs the command `seqloom`."""

import sys

from seqloom.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
