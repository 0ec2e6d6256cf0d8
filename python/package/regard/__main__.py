"""``python -m regard`` is the command ``regard``."""

import sys

from ._shell import main

if __name__ == "__main__":
    sys.argv[0] = "regard"
    sys.exit(main())
