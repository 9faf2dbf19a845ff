"""Errors with a remedy, whose exit codes are those of the program."""

import importlib

USAGE = 2
LACKS_PACKAGE = 4
CORRUPT = 5


class DataError(Exception):
    """What is wrong, where, and what to do about it."""

    def __init__(self, what, remedy, code=USAGE):
        super().__init__(what)
        self.remedy = remedy
        self.code = code


def optional_package(name, what, install=None):
    """Imports a package that only some input needs; `what` says for what."""
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise DataError(f"{what} needs the Python package {name.split('.')[0]}: {problem}",
                        f"pip install {install or name.split('.')[0]}", LACKS_PACKAGE) from problem
