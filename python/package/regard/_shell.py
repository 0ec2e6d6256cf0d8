"""The command ``regard``: the same as the program of that name."""

import os
import sys

from ._regard import _command


def main() -> int:
    if sys.prefix != sys.base_prefix:
        # The command starts the Python of this environment, unless another environment is active.
        os.environ.setdefault("VIRTUAL_ENV", sys.prefix)
    return _command(sys.argv)
