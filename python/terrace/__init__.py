"""The Python side of the program `terrace`. Importing it does nothing, and needs no package. `terrace.__version__` is
the version of the library that the package uses."""


def __getattr__(name):
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from terrace import library
    try:
        return library.library().terrace_version().decode()
    except ImportError as problem:  # so that getattr(terrace, "__version__", None) works without the library
        raise AttributeError(f"terrace.__version__ is the library's version: {problem}") from problem
