"""Values of parameters in memory, in files without a name and in safetensors files. They are read and written by
address, so that no mapping of a file counts as memory of the process."""

import ctypes
import errno
import os
import tempfile

import torch

from terrace import library as lib

PIECE_BYTES = 8 << 20


_libc = ctypes.CDLL(None)
_keeps_free_memory = "MALLOC_TRIM_THRESHOLD_" in os.environ


def return_free_memory():
    """Gives the memory of freed tensors that the allocator has kept back to the system. glibc cannot use the hole that
    an aligned tensor of less than 32 MiB leaves for another tensor of the same size, so holes add up. Does nothing if
    the environment tells the allocator to keep free memory."""
    if hasattr(_libc, "malloc_trim") and not _keeps_free_memory:
        _libc.malloc_trim(0)


def memory_at(address, size):
    """Returns the bytes at an address as a Python buffer."""
    return (ctypes.c_ubyte * size).from_address(address)


def tensor_at(address, count, dtype):
    """Returns the elements at an address as a tensor that does not own them."""
    if count == 0:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(memory_at(address, count * dtype.itemsize), dtype=dtype)


def read_at(file, offset, address, size):
    """Fills memory from a file."""
    while size > 0:
        done = os.preadv(file.fileno(), [memory_at(address, min(size, 1 << 30))], offset)
        if done <= 0:
            raise lib.StorageError(f"{file.name} ends at byte {offset}: it is not what it was when it was opened")
        offset, address, size = offset + done, address + done, size - done


class ScratchFile:
    """A file without a name, which goes away with this object. Its content is in the system's cache, and not in memory
    of the process. If `directory` is None, the file is in the directory of Python's temporary files."""

    def __init__(self, directory=None):
        self._directory = directory
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)
        self._end = 0

    def reserve(self, size):
        """Returns an offset where `size` bytes may be written."""
        offset = self._end
        self._end += (size + 4095) // 4096 * 4096
        return offset

    def write(self, offset, address, size):
        try:
            while size > 0:
                done = os.pwritev(self._file.fileno(), [memory_at(address, min(size, 1 << 30))], offset)
                offset, address, size = offset + done, address + done, size - done
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise lib.FullDiskError(f"{self._directory or tempfile.gettempdir()} has no room for scratch files: "
                                    "name another directory in nvme=, or set TMPDIR") from error

    def read(self, offset, address, size):
        read_at(self._file, offset, address, size)

    def mapping(self, offset, count, dtype):
        """Returns a tensor of `count` elements at `offset`. Its memory is a mapping of the file from the file's start
        to the end of these elements."""
        first = offset // dtype.itemsize
        os.truncate(self._file.fileno(), max(self._end, os.fstat(self._file.fileno()).st_size))
        return torch.from_file(f"/proc/self/fd/{self._file.fileno()}", shared=True, size=first + count,
                               dtype=dtype)[first:]


class MemoryValues:
    """Values in host memory."""

    def __init__(self, tensor):
        self._tensor = tensor.detach().reshape(-1)

    def read(self, first, count, address, dtype):
        tensor_at(address, count, dtype).copy_(self._tensor[first:first + count])


class FileValues:
    """Values of one type in a file. `owner` has the file, and a method read(offset, address, size)."""

    def __init__(self, owner, offset, dtype):
        self._owner, self._offset, self._dtype = owner, offset, dtype

    def read(self, first, count, address, dtype):
        """Writes elements to an address, converted to `dtype`."""
        size = self._dtype.itemsize
        if dtype == self._dtype:
            return self._owner.read(self._offset + first * size, address, count * size)
        target = tensor_at(address, count, dtype)
        for begin in range(0, count, PIECE_BYTES // size):
            piece = torch.empty(min(PIECE_BYTES // size, count - begin), dtype=self._dtype)
            self._owner.read(self._offset + (first + begin) * size, piece.data_ptr(), piece.numel() * size)
            target[begin:begin + piece.numel()].copy_(piece)
        return None


class MasterValues:
    """Values of a parameter, made from its fp32 master. They are rounded as the library rounds: to the nearest, ties
    away from zero."""

    def __init__(self, master):
        self._master = master

    def read(self, first, count, address, dtype):
        if dtype == torch.float32:
            return self._master.read(first, count, address, dtype)
        target = tensor_at(address, count, dtype)
        for begin in range(0, count, PIECE_BYTES // 4):
            piece = torch.empty(min(PIECE_BYTES // 4, count - begin))
            self._master.read(first + begin, piece.numel(), piece.data_ptr(), torch.float32)
            rounded = ((piece.view(torch.int32) + 0x8000) >> 16).to(torch.int16).view(torch.bfloat16)
            target[begin:begin + piece.numel()].copy_(torch.where(piece.isnan(), piece.bfloat16(), rounded))
        return None
