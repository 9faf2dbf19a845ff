"""Errors that carry a remedy, and have the same exit codes as the program's errors."""

import importlib

USAGE = 2
LACKS_PACKAGE = 4
CORRUPT = 5


class DataError(Exception):
    """An error that says what is wrong, where, and what to do about it."""

    def __init__(self, what, remedy, code=USAGE):
        super().__init__(what)
        self.remedy = remedy
        self.code = code


def optional_package(name, what, install=None):
    """Imports a package that only some input needs; `what` names the thing that needs it."""
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise DataError(f"{what} needs the Python package {name.split('.')[0]}: {problem}",
                        f"pip install {install or name.split('.')[0]}", LACKS_PACKAGE) from problem
