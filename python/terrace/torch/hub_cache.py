"""The cache of the Hugging Face hub. Terrace's base/hub_cache.h has the same rules for the program."""

import os

from terrace import library as lib


def hub_snapshot(directory):
    """Returns the snapshot to read where the path is a directory models--A--B of the hub's cache: the one that
    refs/main names, or the only one. Returns any other path as it is."""
    model = os.path.normpath(directory)
    if os.path.basename(model) == "snapshots":
        model = os.path.dirname(model)
    snapshots = os.path.join(model, "snapshots")
    is_cached = os.path.basename(model).startswith("models--") or os.path.isdir(os.path.join(model, "refs"))
    if not is_cached or not os.path.isdir(snapshots):
        return directory
    names = sorted(os.listdir(snapshots))
    commit = _main_commit(model)
    if commit is None and len(names) == 1:
        commit = names[0]
    if commit in names:
        return os.path.join(snapshots, commit)
    main = "there is no refs/main" if commit is None else f"refs/main names {commit}"
    raise lib.ArgumentError(f"{directory} is of the hub's cache: {main}, and the snapshots are {', '.join(names)}: "
                            "name the snapshot to read")


def _main_commit(model):
    try:
        with open(os.path.join(model, "refs", "main"), encoding="utf-8") as file:
            return file.read().strip() or None
    except OSError:
        return None
