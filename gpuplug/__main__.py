"""``python -m gpuplug``."""

import sys

from gpuplug.cli import main

if __name__ == "__main__":
    sys.exit(main())
