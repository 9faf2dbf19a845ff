"""Finds the files of a model directory that have its weights, and reads what is in them. Terrace's docs/checkpoint.md
says under "Model directories" what is refused."""

import json
import os

import torch

from terrace import library as lib
from terrace.torch.values import PIECE_BYTES, FileValues, read_at

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64,
           "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
           "BOOL": torch.bool}
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_SAMPLE_BYTES = 64 << 10
_OTHER_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".incomplete", ".part")


class StoredTensor:
    """A tensor of a safetensors file."""

    def __init__(self, file, offset, shape, dtype):
        self.file = file
        self.shape = shape
        self.dtype = dtype
        self.count = torch.Size(shape).numel()
        self.values = FileValues(file, offset, dtype)
        self._offset = offset

    def sample(self):
        """Returns its bytes at the start, in the middle and at the end."""
        size = self.count * self.dtype.itemsize
        places = (0, max(0, size // 2 - _SAMPLE_BYTES // 2), max(0, size - _SAMPLE_BYTES))
        return [self.file.bytes(self._offset + place, min(_SAMPLE_BYTES, size - place)) for place in places]

    def equals(self, other):
        """Returns whether all values equal another tensor's."""
        if self.shape != other.shape:
            return False
        for first in range(0, self.count, PIECE_BYTES // 4):
            count = min(PIECE_BYTES // 4, self.count - first)
            pieces = torch.empty(2, count)
            for piece, tensor in zip(pieces, (self, other)):
                tensor.values.read(first, count, piece.data_ptr(), torch.float32)
            if not torch.equal(*pieces):
                return False
        return True


class _OpenFile:
    def __init__(self, path):
        try:
            self._file = open(path, "rb", buffering=0)
        except OSError as error:
            raise lib.ArgumentError(f"{path} cannot be read: {error.strerror}; get the whole model again") from error
        self.name = os.path.basename(path)
        self.size = os.fstat(self._file.fileno()).st_size
        self._stamp = self._stamp_now()

    def __del__(self):
        if hasattr(self, "_file"):
            self._file.close()

    def _stamp_now(self):
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns

    def read(self, offset, address, size):
        if self._stamp_now() != self._stamp:
            raise lib.StorageError(f"{self._file.name} was changed after load_pretrained() opened it, and is "
                                   "read until the first step: save into another directory")
        read_at(self._file, offset, address, size)

    def bytes(self, offset, size):
        return os.pread(self._file.fileno(), size, offset)


def _tensors_of_file(path):
    file = _OpenFile(path)
    damage = lib.ArgumentError(f"{path} is no whole safetensors file: get it again")
    size = int.from_bytes(file.bytes(0, 8), "little")
    if file.bytes(0, 8) == b"version ":
        raise lib.ArgumentError(f"{path} is a Git LFS pointer instead of the file; fetch the file itself: git lfs pull")
    if not 0 < size < 100_000_000 or 8 + size > file.size:
        raise damage
    try:
        header = json.loads(file.bytes(8, size))
    except ValueError:
        raise damage from None
    tensors = {}
    for key, entry in header.items():
        if key == "__metadata__":
            continue
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise lib.DTypeError(f"{key} in {file.name} is {entry['dtype']}, which is not read here: convert the "
                                 "checkpoint to float32 or bfloat16")
        begin, end = entry["data_offsets"]
        tensor = StoredTensor(file, 8 + size + begin, tuple(entry["shape"]), dtype)
        if end - begin != tensor.count * dtype.itemsize or 8 + size + end > file.size:
            raise damage
        tensors[key] = tensor
    return tensors


def _index_of(directory):
    """Returns the file of each tensor, as the index says."""
    path = os.path.join(directory, _INDEX)
    try:
        with open(path, encoding="utf-8") as file:
            names = json.load(file)["weight_map"]
        if all(isinstance(name, str) and os.path.basename(name) == name for name in names.values()):
            return names
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise lib.ArgumentError(f"{path} cannot be read, or names files that are not beside it: get the model again")


def _tensors_of_index(directory, names):
    files = {name: _tensors_of_file(os.path.join(directory, name)) for name in sorted(set(names.values()))}
    for key, name in names.items():
        if key not in files[name]:
            raise lib.ArgumentError(f"{_INDEX} in {directory} says that {name} has {key}, which is not there: the "
                                    "files are of several saves; get or save the model again")
    return {key: files[name][key] for key, name in names.items()}


def _check_against_index(directory, single):
    """Refuses a single file beside an index that says something else. Two saves into one directory leave such files."""
    names = _index_of(directory)
    other = None if set(names) == set(single) else "other tensors"
    for name in sorted(set(names.values())) if other is None else ():
        path = os.path.join(directory, name)
        if not os.path.exists(path):
            continue
        for key, tensor in _tensors_of_file(path).items():
            mine = single.get(key)
            if names.get(key) == name and (mine.shape != tensor.shape or mine.dtype != tensor.dtype
                                           or mine.sample() != tensor.sample()):
                other = f"another {key}"
    if other is not None:
        raise lib.ArgumentError(f"{directory} has both {_SINGLE} and {_INDEX}, whose files have {other}: two models "
                                "were saved there; remove the one that is not meant")


def read_safetensors(directory):
    """Returns the StoredTensors of the model in a directory, by name. They come from model.safetensors, or else from
    the files of model.safetensors.index.json. Nothing else in the directory counts."""
    has_single, has_index = (os.path.lexists(os.path.join(directory, name)) for name in (_SINGLE, _INDEX))
    if has_single:
        tensors = _tensors_of_file(os.path.join(directory, _SINGLE))
        if has_index:
            _check_against_index(directory, tensors)
        return tensors
    if has_index:
        return _tensors_of_index(directory, _index_of(directory))
    others = sorted(name for name in os.listdir(directory) if name.endswith(_OTHER_WEIGHTS))
    found = f"; {', '.join(others[:3])} there are not read" if others else ""
    raise lib.ArgumentError(f"{directory} has neither {_SINGLE} nor {_INDEX}{found}: save the model there by "
                            "save_pretrained()")
