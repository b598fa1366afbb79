"""``python -m r2no`` without the working folder on the path of imports.

Python puts the folder where a user happens to be first, before the standard library, and packages
that are looked for but not installed would be imported from there: whoever wrote the data in it
could run code. The command ``r2no`` has no such entry, and ``python -m`` shall be the same.
"""

import sys

_STARTING = "-m"  # what Python calls a program while it looks for the module


def leave_out_working_folder() -> None:
    """Undo what ``python -m r2no`` added; nothing if r2no is imported in any other way."""
    arguments = sys.orig_argv
    if sys.argv[:1] != [_STARTING] or sys.flags.safe_path or _STARTING not in arguments:
        return
    module = arguments[arguments.index(_STARTING) + 1]
    if module.split(".")[0] == "r2no":
        del sys.path[0]
