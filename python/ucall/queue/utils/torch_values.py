"""PyTorch's tensors as arrays, from which a receiver makes tensors of its own.

NumPy lacks some of PyTorch's dtypes, so an array has the items as integers of their size. No
function of PyTorch is named in a message: its own pickles contain others, which `torch.load` reads.
"""

from __future__ import annotations

import importlib
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np

from ucall.queue.utils.arrays import Writable

# Its types are not checked: it is not installed where they are.
torch: Any = importlib.import_module("torch")

__all__ = ["device", "dtype", "reducers", "size", "state_dict", "tensor"]

#: The dtypes of arrays and tensors for items of so many bytes.
_ITEMS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64", 16: "complex128"}
_DTYPES = {str(it): it for it in vars(torch).values() if isinstance(it, torch.dtype)}


def reducers() -> dict[type, Any]:
    """The functions that `pickle` calls for these types."""
    return {
        torch.Tensor: _reduced,
        torch.nn.Parameter: _reduced,
        torch.Size: _reduced_size,
        torch.dtype: _reduced_dtype,
        torch.device: _reduced_device,
        OrderedDict: _reduced_ordered,
    }


def _reduced(data: Any) -> Any:
    _check(data)
    # Negated and conjugated views have the items of another tensor.
    items = data.resolve_conj().resolve_neg()
    array = items.view(getattr(torch, _ITEMS[data.dtype.itemsize])).numpy()
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        array = array.copy()
    return tensor, (Writable(array), str(data.dtype))


def _check(data: Any) -> None:
    """Refuses what would arrive as another tensor, and names what makes this one of it."""
    if data.is_meta:
        raise pickle.PicklingError("a tensor on the device meta has no data to put")
    is_parameter = isinstance(data, torch.nn.Parameter)
    obstacles = {
        "requires_grad": ("detach()", is_parameter or data.requires_grad),
        "nested parts": ("unbind()", data.is_nested),
        f"layout {data.layout}": ("to_dense()", data.layout is not torch.strided),
        f"dtype {data.dtype}": ("dequantize()", data.is_quantized),
        f"device {data.device}": ("cpu()", not data.is_cpu),
    }
    found = {name: fix for name, (fix, applies) in obstacles.items() if applies}
    if found:
        state = ", or module.state_dict()" if is_parameter else ""
        raise pickle.PicklingError(
            f"tensors are sent as data alone, but this one has {', '.join(found)}: put "
            f"tensor.{'.'.join(found.values())}{state}"
        )


def _reduced_size(data: Any) -> Any:
    return size, (tuple(data),)


def _reduced_dtype(data: Any) -> Any:
    return dtype, (str(data),)


def _reduced_device(data: Any) -> Any:
    return device, (str(data),)


def _reduced_ordered(data: Any) -> Any:
    """That of a module's `state_dict()` has its versions in an attribute."""
    if vars(data).keys() == {"_metadata"}:
        return state_dict, (OrderedDict(data), data._metadata)
    return data.__reduce_ex__(5)


def tensor(items: Any, name: Any) -> Any:
    """A tensor of the items and the dtype that a sender chooses. It uses their memory."""
    made = dtype(name)
    carrier = _ITEMS[made.itemsize]
    if type(items) is not np.ndarray or items.dtype != carrier or not items.flags.behaved:
        raise TypeError("the items of a tensor are no array of their size")
    if made is torch.bool and items.max(initial=0) > 1:
        raise ValueError("a bool of a tensor is neither 0 nor 1")
    if name.startswith("torch.q"):
        raise TypeError("a tensor is quantized")
    return torch.from_numpy(items).view(made)


def size(lengths: Any) -> Any:
    """The size of lengths that a sender chooses."""
    if type(lengths) is not tuple:
        raise TypeError("a size is no tuple")
    return torch.Size(lengths)


def dtype(name: Any) -> Any:
    """The dtype of a name that a sender chooses."""
    if name not in _DTYPES:
        raise TypeError(f"this PyTorch has no dtype {name!s:.50}")
    return _DTYPES[name]


def device(name: Any) -> Any:
    """The device of a name that a sender chooses. It need not exist here."""
    if type(name) is not str:
        raise TypeError("a device is no text")
    return torch.device(name)


def state_dict(entries: Any, metadata: Any) -> Any:
    """The entries with versions that a sender chooses. They are not copied."""
    if type(entries) is not OrderedDict:
        raise TypeError("a state_dict is no OrderedDict")
    entries._metadata = metadata  # type: ignore[attr-defined]
    return entries


_functions: tuple[Any, ...] = (tensor, size, dtype, device, state_dict)
for _function in _functions:
    _function.__ucall_complete__ = True
