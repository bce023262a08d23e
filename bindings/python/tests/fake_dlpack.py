"""An array of another package, with any dtype: DLPack's structures, made by hand."""

import ctypes
import itertools
import mmap
from typing import Any

import numpy as np

BFLOAT16 = (4, 16, 1)
FLOAT8_E5M2 = (12, 8, 1)
# As in PyTorch: two in a byte.
FLOAT4_X2 = (17, 4, 2)
CPU, CUDA = 1, 2


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("number", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_new = ctypes.pythonapi.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)

# Capsules that were given out: by address, the owner, and all objects that must stay until they are
# given back. The arrays do not keep these: a garbage collection would take callback and memory
# before their users.
_given: dict[int, tuple[Any, ...]] = {}
_keys = itertools.count()


@_Deleter
def _give_back(address: int) -> None:
    del _given[address]


class Array:
    """Shows the memory of a NumPy array of integers as elements of a dtype that NumPy lacks."""

    def __init__(
        self,
        memory: "np.ndarray[Any, Any]",
        dtype: tuple[int, int, int] = BFLOAT16,
        *,
        device: int = CPU,
        version: tuple[int, int] | None = (1, 0),
        read_only: bool = False,
    ) -> None:
        self.memory, self.dtype, self.device = memory, dtype, device
        self.version, self.read_only = version, read_only
        self._key = next(_keys)

    @property
    def lent(self) -> int:
        """Number of tensors that are taken and not given back yet."""
        mine = [entry for entry in _given.values() if entry[0] == self._key]
        return sum(not _is_valid(capsule, name) for _, capsule, name, *_ in mine)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, **options: object) -> Any:
        code, bits, lanes = self.dtype
        itemsize = self.memory.itemsize
        extents = (ctypes.c_int64 * self.memory.ndim)(*self.memory.shape)
        steps = [stride // itemsize for stride in self.memory.strides]
        strides = (ctypes.c_int64 * self.memory.ndim)(*steps)
        tensor = _Tensor(
            self.memory.ctypes.data, self.device, 0, self.memory.ndim, code, bits, lanes,
            extents, strides, 0,
        )  # fmt: skip
        held: _Managed | _Versioned
        if self.version is None:
            held, name = _Managed(tensor, None, _give_back), b"dltensor"
        else:
            flags = 1 if self.read_only else 0
            held = _Versioned(*self.version, None, _give_back, flags, tensor)
            name = b"dltensor_versioned"
        address = ctypes.addressof(held)
        capsule = _new(address, name, None)
        _given[address] = self._key, capsule, name, held, extents, strides, self.memory
        return capsule


class Early(Array):
    """An array of a package that knows DLPack only from before version 1."""

    def __init__(self, memory: "np.ndarray[Any, Any]", dtype: tuple[int, int, int]) -> None:
        super().__init__(memory, dtype, version=None)

    def __dlpack__(self, stream: None = None) -> Any:  # type: ignore[override]
        return super().__dlpack__()


class Tensor(Early):
    """A tensor of PyTorch, by its name."""

    __module__ = "torch"


class Parameter(Tensor):
    """A program's own class of tensors."""


class Buffered(mmap.mmap):
    """An array of such a package that also shows a buffer, which says if writes are allowed."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0

    def __dlpack__(self, stream: None = None) -> Any:
        return Early(np.frombuffer(self, np.int64), (0, 64, 1)).__dlpack__()
