"""`python -m specrig`."""

import sys

from specrig.cli import main

if __name__ == "__main__":
    sys.exit(main())
