"""A GPU that is none: tensors that say they are on cuda:0 and lie in the CPU's memory, for what a CPU cannot test.

    with pretended() as gpu:
        model = gmmvit.create_model("vit", mask="gmm").to("cuda")

They carry CUDA's dispatch keys (autograd, autocast's lists), and their numbers are real. Devices and types that meet
are refused as CUDA's kernels refuse them. `gpu.log` counts {(kind, place): times}: what crosses between host and GPU,
and kinds that begin with "wait" where the host waits for the GPU. Backward works in a process that was started with
`environment()`.

Not emulated: kernels and their races, NCCL, memory and its limits, speed, what a compiler makes of a model.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from unittest import mock

import torch
import torch.__future__ as future
import torch.nn.attention.flex_attention as flex
from pretend_kernels import KERNELS, FusedAttention, flex_attention
from torch.utils._python_dispatch import TorchDispatchMode

import gmmvit

CUDA = torch.device("cuda", 0)
used = False  # in this process, whose autograd then has threads that no fork survives
PROJECT = Path(gmmvit.__file__).parent
aten = torch.ops.aten

# operators that take tensors of both devices; what reads numbers of the GPU on the host
CROSSING = {aten._to_copy, aten.copy_, aten._foreach_copy_, aten.lift_fresh, aten.set_}
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
READING = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten._unique2, aten.unique_dim}
SCALARS = {aten.masked_fill, aten.masked_fill_, aten.fill_, aten.where, *INDEXING}  # beside all pointwise ones
ONE_TYPE = {
    **dict.fromkeys((aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.convolution), slice(0, 3)),
    **dict.fromkeys((aten.native_layer_norm, aten.native_group_norm), slice(0, 4)),
}


class Tensor(torch.Tensor):
    """A tensor of cuda:0 whose storage is an ordinary one."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @staticmethod
    def __new__(cls, tensor: torch.Tensor, requires_grad: bool = False):
        keys = {"dispatch_device": True, "device_for_backend_keys": CUDA}
        return torch.Tensor._make_subclass(cls, tensor.detach(), requires_grad, **keys)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {}, Gpu.current)

    def tolist(self):
        return self.cpu().tolist()

    def numpy(self, *args, **kwargs):
        raise TypeError("can't convert cuda:0 device type tensor to numpy: use Tensor.cpu() first")

    __array__ = numpy

    def __repr__(self, *, tensor_contents=None):
        return f"{tuple(self.shape)} {self.dtype} on the pretend GPU"

    def __reduce_ex__(self, protocol):
        return self.detach().cpu().requires_grad_(self.requires_grad).__reduce_ex__(protocol)

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            new = memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
            new.__dict__.update(self.__dict__)  # such as what makes it a parameter
            new.grad = None if self.grad is None else self.grad.clone()
        return memo[id(self)]


class Gpu(TorchDispatchMode):
    """What happens while tensors may be made on cuda:0."""

    current: Gpu | None = None
    supports_higher_order_operators = True

    def __init__(self):
        super().__init__()
        self.log: Counter = Counter()
        self.operators: Counter = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {}, self)

    def note(self, kind: str) -> None:
        self.log[kind, place()] += 1

    def waits(self) -> set[tuple[str, str]]:
        """Where the host waited for the GPU, and why."""
        return {entry for entry in self.log if entry[0].startswith("wait")}


def place() -> str:
    """The function of the project that is running, such as "train/depth.py Depth.draw"."""
    frame = sys._getframe()
    while frame is not None:
        if path := _of_the_project(frame.f_code.co_filename):
            return f"{path} {frame.f_code.co_qualname}"
        frame = frame.f_back
    return "outside the project"


@cache
def _of_the_project(name: str) -> str:
    path = Path(name)
    return str(path.relative_to(PROJECT)) if PROJECT in path.parents else ""


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers as an ordinary tensor of the CPU, in the same memory."""
    if not isinstance(tensor, Tensor):
        return tensor
    with torch._C._DisableTorchDispatch():
        bare = torch.empty(0, dtype=tensor.dtype)
        return bare.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def run(func, args: tuple, kwargs: dict, gpu: Gpu | None):
    """The result of an operator, on the device where CUDA would leave it."""
    if func is torch.ops.prim.device.default:
        return args[0].device if isinstance(args[0], Tensor) else torch.device("cpu")
    tensors = [value for value in leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    ours = any(isinstance(tensor, Tensor) for tensor in tensors)
    asked = torch.device(kwargs["device"]).type if kwargs.get("device") is not None else None
    if not ours and asked != "cuda":
        return func(*args, **kwargs)
    name = getattr(func, "overloadpacket", func)
    if ours and name not in CROSSING:
        refuse(func, name, args, tensors)
    if gpu is not None:
        gpu.operators[name.__name__] += 1
        for kind in crossings(name, args, kwargs, asked):
            gpu.note(kind)
    bare = {id(tensor): plain(tensor) for tensor in tensors}
    host = torch.device("cpu")
    ordinary, options = changed(lambda v: host if isinstance(v, torch.device) else bare.get(id(v), v), (args, kwargs))
    kernel = KERNELS.get(name.__name__, func) if ours else func
    on_gpu = asked == "cuda" if asked else isinstance(_target(args), Tensor) if name in CROSSING else ours
    same = {id(bare[id(tensor)]): tensor for tensor in tensors}

    def returned(value):
        if not isinstance(value, torch.Tensor):
            return value
        return same[id(value)] if id(value) in same else Tensor(value) if on_gpu else value

    return changed(returned, kernel(*ordinary, **options))


def leaves(values: Iterable) -> Iterator:
    """What is in tuples, lists and dictionaries, and beside them; torch's trees took a quarter of these tests' time."""
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from leaves(value)
        elif isinstance(value, dict):
            yield from leaves(value.values())
        else:
            yield value


def changed(change: Callable, value: object) -> object:
    """The same tuples, lists and dictionaries with each of their leaves changed."""
    if isinstance(value, (tuple, list)):
        return type(value)([changed(change, each) for each in value])
    if isinstance(value, dict):
        return {key: changed(change, each) for key, each in value.items()}
    return change(value)


def _target(args: tuple):
    return args[0][0] if isinstance(args[0], (list, tuple)) else args[0]


def crossings(name, args: tuple, kwargs: dict, asked: str | None) -> list[str]:
    """What an operator moves between host and GPU, and what the host waits for."""
    free = bool(kwargs.get("non_blocking"))
    if name is aten._to_copy and asked and (asked == "cuda") != isinstance(args[0], Tensor):
        return [f"{'' if free else 'wait: '}copy to the {'GPU' if asked == 'cuda' else 'host'}"]
    if name in (aten.copy_, aten._foreach_copy_):
        target, source = (_target((value,)) for value in args[:2])
        if isinstance(target, Tensor) != isinstance(source, Tensor):
            free = free or (len(args) > 2 and args[2])
            return [f"{'' if free else 'wait: '}copy to the {'GPU' if isinstance(target, Tensor) else 'host'}"]
    if name in INDEXING:
        indices = [index for index in args[1] if isinstance(index, torch.Tensor)]
        return ["wait: an index of the host"] * any(not isinstance(i, Tensor) and i.ndim for i in indices) + [
            "wait: a mask as index"
        ] * any(i.dtype in (torch.bool, torch.uint8) for i in indices)
    return [f"wait: {name.__name__}"] if name in READING else []


def refuse(func, name, args: tuple, tensors: list[torch.Tensor]) -> None:
    """Raises where kernels of CUDA would: a tensor of the host beside one of the GPU, types that differ."""
    scalars = name in SCALARS or torch.Tag.pointwise in getattr(func, "tags", ())
    for tensor in tensors:
        if isinstance(tensor, Tensor) or (scalars and tensor.ndim == 0):
            continue
        if name in INDEXING and tensor is not args[0]:
            continue
        found = ", ".join(f"{tuple(t.shape)} {t.device}" for t in tensors)
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"({name}: {found})"
        )
    if name in ONE_TYPE:
        types = [value.dtype for value in args[ONE_TYPE[name]] if isinstance(value, torch.Tensor)]
        if len(set(types)) > 1:
            raise RuntimeError(f"expected scalar type {types[0]} but found {types[1:]} ({name})")


# ---- the process that it runs in -------------------------------------------------------------------------------------


def backward_works() -> bool:
    """Whether this process was started with `environment()`."""
    return hasattr(ctypes.CDLL(None), "pretend_devices")


@cache
def environment() -> tuple[dict[str, str] | None, str]:
    """The environment of a process in which backward works; or None, and why there is none."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not sys.platform.startswith("linux") or torch.version.cuda is None:
        return None, "backward on the pretend GPU needs Linux and a torch that was built for CUDA"
    if compiler is None:
        return None, "backward on the pretend GPU needs a C compiler (cc)"
    source = Path(__file__).with_name("shim.c")
    library = Path(tempfile.gettempdir()) / f"gmmvit-{os.getuid()}-{hashlib.sha256(source.read_bytes()).hexdigest()}.so"
    if not library.exists():
        name = "-Wl,-soname,libcuda.so.1"  # so that torch finds it where it looks for the driver
        part = library.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, "-shared", "-fPIC", name, "-o", part, source], check=True)
        part.replace(library)
    return {**os.environ, "LD_PRELOAD": str(library), "CUDA_VISIBLE_DEVICES": ""}, ""


def _enter_inference(mode: torch.inference_mode) -> None:
    mode.instead = torch.set_grad_enabled(torch.is_grad_enabled() and not mode.mode)


def _leave_inference(mode: torch.inference_mode, *error) -> None:
    mode.instead.__exit__(*error)


class _Generator(torch.Generator):
    def __new__(cls, device="cpu"):
        return super().__new__(cls, "cpu")


REPLACED = [
    (torch, "Generator", _Generator),
    (torch.Tensor, "pin_memory", lambda self, *device: self),
    (torch.cuda, "_lazy_init", lambda: None),
    (torch.cuda, "is_available", lambda: True),
    (torch.cuda, "device_count", lambda: 1),
    (torch.cuda, "current_device", lambda: 0),
    (torch.cuda, "set_device", lambda device: None),
    (torch.cuda, "get_device_name", lambda device=None: "a pretend GPU"),
    (torch.cuda, "is_bf16_supported", lambda including_emulation=True: True),
    (torch.cuda, "synchronize", lambda device=None: Gpu.current.note("wait: synchronize")),
    (torch.cuda, "max_memory_allocated", lambda device=None: 0),
    (torch.cuda, "get_rng_state", lambda device=None: torch.empty(0, dtype=torch.uint8)),
    (torch.cuda, "set_rng_state", lambda state, device=None: None),
    (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
    (torch.accelerator, "is_available", lambda: True),
    (torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda")),
    (torch.accelerator, "set_device_index", lambda device: None),
    (flex, "flex_attention", flex_attention),
]


@contextlib.contextmanager
def without_driver(swap: bool = True):
    """Inside, torch asks no driver about cuda:0; .to() swaps a parameter with the one it made, or replaces it."""
    torch._C._ensureCUDADeviceGuardSet()
    with contextlib.ExitStack() as stack:
        if backward_works():
            ctypes.CDLL(None).pretend_devices(127)  # as many as torch's guard without a driver claims
            stack.callback(ctypes.CDLL(None).pretend_devices, 0)
        for place in REPLACED:
            stack.enter_context(mock.patch.object(*place))
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))  # no GPU, no thread of it
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for get, put, value in (
            (
                torch._C._only_lift_cpu_tensors,
                torch._C._set_only_lift_cpu_tensors,
                True,
            ),  # tensor(...) goes by the host
            (future.get_swap_module_params_on_conversion, future.set_swap_module_params_on_conversion, swap),
            (future.get_overwrite_module_params_on_conversion, future.set_overwrite_module_params_on_conversion, True),
        ):
            stack.callback(put, get())
            put(value)
        yield


@contextlib.contextmanager
def pretended():
    """Inside, cuda:0 can be used."""
    global used
    gpu, used = Gpu(), True
    inference = {"__enter__": _enter_inference, "__exit__": _leave_inference}  # its tensors cannot be of a subclass
    with without_driver(), mock.patch.multiple(torch.inference_mode, **inference):
        with FusedAttention(Tensor), gpu, mock.patch.object(Gpu, "current", gpu):
            yield gpu
