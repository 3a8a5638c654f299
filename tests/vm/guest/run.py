"""Runs pytest inside the machine, with the gpuplugs that are at work all the time started before it.

Emulated, pytest takes ten seconds to load, and a gpuplug six; there are two processors for that.
"""

import sys

from .launch import EARLY, VIEWS, launch

if __name__ == "__main__":
    views, *arguments = sys.argv[1:]
    for view in views.split(","):
        if view:
            EARLY[view] = launch(view, VIEWS[view])

    import pytest

    sys.exit(pytest.main(arguments))
