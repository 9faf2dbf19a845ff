"""Tensors whose memory is a file without a name. The process gives their pages back while others read them."""

import ctypes
import threading
import weakref

import torch

from terrace.torch.values import PIECE_BYTES, ScratchFile

_MADV_DONTNEED = 4
_BETWEEN_SECONDS = 0.01
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class _PageReturn:
    """Gives pages of mapped tensors back to the file cache, again and again, as long as there are such tensors. Saving
    a model reads all of them, and the pages would count as memory of the process. Their content stays in the file."""

    def __init__(self):
        self._lock = threading.Lock()
        self._tensors = []
        self._thread = None

    def add(self, tensor):
        with self._lock:
            self._tensors.append(weakref.ref(tensor))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="terrace-pages", daemon=True)
                self._thread.start()

    def _run(self):
        pause = threading.Event()
        while True:
            pause.wait(_BETWEEN_SECONDS)
            with self._lock:
                self._tensors = [known for known in self._tensors if known() is not None]
                if not self._tensors:
                    self._thread = None
                    return
                tensors = list(self._tensors)
            for known in tensors:
                tensor = known()  # holds on to its address until the pages are given back
                if tensor is not None:
                    _libc.madvise(tensor.data_ptr(), tensor.numel() * tensor.element_size(), _MADV_DONTNEED)
                del tensor


_page_return = _PageReturn()


def mapped_tensor(shape, dtype, read, directory):
    """Returns a tensor in a file of the directory, which read(first, count, address) has filled piece by piece. The
    file goes away with the tensor."""
    count = 1
    for size in shape:
        count *= size
    file = ScratchFile(directory)
    offset = file.reserve(count * dtype.itemsize)
    piece = torch.empty(min(count, PIECE_BYTES // dtype.itemsize), dtype=dtype)
    for first in range(0, count, piece.numel()):
        part = min(piece.numel(), count - first)
        read(first, part, piece.data_ptr())
        file.write(offset + first * dtype.itemsize, piece.data_ptr(), part * dtype.itemsize)
    tensor = file.mapping(offset, count, dtype).view(shape)
    _page_return.add(tensor)
    return tensor
