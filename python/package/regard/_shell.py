"""The command ``regard``: the same as the program of that name."""

import os
import sys

from ._regard import _command


def main() -> int:
    if sys.prefix != sys.base_prefix:
        # What the command asks Python for is asked of the environment that it was installed in, unless another one is active.
        os.environ.setdefault("VIRTUAL_ENV", sys.prefix)
    return _command(sys.argv)
