"""The C interface (include/lockstep/lockstep.h) declared for ctypes. No other file knows its layout."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from enum import IntEnum

from lockstep import __version__, _library


class Status(IntEnum):
    OK = 0
    INVALID_ARGUMENT = 1
    MISMATCH = 2
    PEER_LOST = 3
    TIMEOUT = 4
    ABORTED = 5
    UNAVAILABLE = 6
    SYSTEM = 7
    INTERNAL = 8
    INCOMPATIBLE = 9


TIMELINE_MARK_STEPS = 1
TIMELINE_EXACT_PATH = 2


class DType(IntEnum):
    BOOL = 0
    U8 = 1
    I8 = 2
    U16 = 3
    I16 = 4
    U32 = 5
    I32 = 6
    U64 = 7
    I64 = 8
    F16 = 9
    BF16 = 10
    F32 = 11
    F64 = 12
    C64 = 13
    C128 = 14


class ReduceOp(IntEnum):
    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


class Tensor(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("data", c_void_p),
        ("dtype", c_int32),
        ("device", c_int32),
        ("ndim", c_int32),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("name", c_char_p),
    ]


_TENSOR_BYTES = ctypes.sizeof(Tensor)


class ReduceOptions(ctypes.Structure):
    # The struct holds only the address of its group: this keeps the group.
    kept: object

    _fields_ = [
        ("struct_size", c_size_t),
        ("op", c_int32),
        ("average_over_contributors", c_int32),
        ("prescale", c_double),
        ("postscale", c_double),
        ("group", c_void_p),
        ("leaves", c_int64),
        ("first_leaf", c_int64),
        ("leaf_count", c_int64),
        ("result_dtype", c_int32),
        ("epilogue", c_void_p),
        ("epilogue_user", c_void_p),
    ]


class Result(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("data", c_void_p),
        ("dtype", c_int32),
        ("ndim", c_int32),
        ("shape", c_int64 * 8),
        ("received", POINTER(c_int64)),
        ("received_count", c_size_t),
        ("last_joined", c_int32),
    ]


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rank", c_int32),
        ("size", c_int32),
        ("local_rank", c_int32),
        ("local_size", c_int32),
        ("job", c_char_p),
        ("secret", c_void_p),
        ("secret_bytes", c_size_t),
        ("epoch", c_uint32),
        ("heap_bytes", c_size_t),
        ("start_timeout_ms", c_uint64),
        ("stall_warning_ms", c_uint64),
        ("stall_limit_ms", c_uint64),
        ("timeline", c_char_p),
        ("flight_directory", c_char_p),
        ("transport", c_char_p),
        ("interface", c_char_p),
        ("meeting", c_char_p),
        ("encrypt_data", c_int32),
        ("group_ranks", POINTER(c_int32)),
        ("group_sizes", POINTER(c_size_t)),
        ("group_count", c_size_t),
        ("timeline_mark_steps", c_int32),
    ]


class Counter(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("kind", c_char_p), ("value", c_uint64)]


class OptimizerOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_int32),
        ("maximize", c_int32),
        ("nesterov", c_int32),
        ("amsgrad", c_int32),
        ("centered", c_int32),
        ("learning_rate", c_double),
        ("weight_decay", c_double),
        ("momentum", c_double),
        ("dampening", c_double),
        ("beta1", c_double),
        ("beta2", c_double),
        ("epsilon", c_double),
        ("learning_rate_decay", c_double),
        ("smoothing", c_double),
    ]


class OptimizedTensor(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("weights", c_void_p),
        ("dtype", c_int32),
        ("first", c_size_t),
        ("state", c_void_p * 3),
        ("master", c_void_p),
        ("options", POINTER(OptimizerOptions)),
        ("step", c_int64),
    ]


class OptimizerStep(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("options", POINTER(OptimizerOptions)),
        ("step", c_int64),
        ("tensors", POINTER(OptimizedTensor)),
        ("tensor_count", c_size_t),
    ]


class SharedTensor(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("dtype", c_int32),
        ("elements", c_size_t),
        ("group", c_size_t),
    ]


class SharedValues(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("weights", c_void_p),
        ("state", c_void_p * 3),
        ("steps", c_int64),
    ]


# Engines, works, groups and shared weights are opaque: c_void_p. Each entry: result, arguments.
_TENSOR = POINTER(Tensor)
_OPTIONS = POINTER(ReduceOptions)
_WORK = POINTER(c_void_p)
_FUNCTIONS = {
    "ls_version": (c_char_p, []),
    "ls_last_error": (c_char_p, []),
    "ls_options_from_environment": (c_int, [POINTER(Options)]),
    "ls_engine_start": (c_int, [POINTER(Options), POINTER(c_void_p)]),
    "ls_engine_stop": (c_int, [c_void_p]),
    "ls_engine_rank": (c_int, [c_void_p]),
    "ls_engine_size": (c_int, [c_void_p]),
    "ls_engine_local_rank": (c_int, [c_void_p]),
    "ls_engine_local_size": (c_int, [c_void_p]),
    "ls_all_reduce": (c_int, [c_void_p, _TENSOR, _TENSOR, _OPTIONS, _WORK]),
    "ls_all_reduce_at_once": (c_int, [c_void_p, _TENSOR, _TENSOR, _OPTIONS, _WORK]),
    "ls_grouped_all_reduce": (c_int, [c_void_p, _TENSOR, _TENSOR, c_size_t, _OPTIONS, _WORK]),
    "ls_reduce": (c_int, [c_void_p, _TENSOR, _TENSOR, c_int32, _OPTIONS, _WORK]),
    "ls_reduce_scatter": (c_int, [c_void_p, _TENSOR, _TENSOR, _OPTIONS, _WORK]),
    "ls_broadcast": (c_int, [c_void_p, _TENSOR, c_int32, c_void_p, _WORK]),
    "ls_all_gather": (c_int, [c_void_p, _TENSOR, _TENSOR, c_void_p, _WORK]),
    "ls_gather": (c_int, [c_void_p, _TENSOR, _TENSOR, c_int32, c_void_p, _WORK]),
    "ls_scatter": (c_int, [c_void_p, _TENSOR, _TENSOR, c_int32, c_void_p, _WORK]),
    "ls_all_to_all": (c_int, [c_void_p, _TENSOR, POINTER(c_int64), c_size_t, _TENSOR, c_void_p, _WORK]),
    "ls_send": (c_int, [c_void_p, _TENSOR, c_int32, c_int32, _WORK]),
    "ls_receive": (c_int, [c_void_p, _TENSOR, c_int32, c_int32, _WORK]),
    "ls_barrier": (c_int, [c_void_p, c_char_p, c_void_p, _WORK]),
    "ls_join": (c_int, [c_void_p, c_void_p, _WORK]),
    "ls_group_make": (c_int, [c_void_p, POINTER(c_int32), c_size_t, POINTER(c_void_p)]),
    "ls_group_free": (None, [c_void_p]),
    "ls_work_poll": (c_int, [c_void_p, POINTER(c_int)]),
    "ls_work_wait": (c_int, [c_void_p, c_int64]),
    "ls_work_wait_slice": (c_int, [c_void_p, c_int64]),
    "ls_work_result": (c_int, [c_void_p, c_size_t, POINTER(Result)]),
    "ls_work_free": (None, [c_void_p]),
    "ls_begin_exclusive_step": (c_int, [c_void_p]),
    "ls_all_reduce_in_step": (c_int, [c_void_p, _TENSOR, _OPTIONS]),
    "ls_all_reduce_several_in_step": (c_int, [c_void_p, c_void_p, c_size_t, _OPTIONS]),
    "ls_end_step": (c_int, [c_void_p, POINTER(c_uint64)]),
    "ls_abort": (c_int, [c_void_p, c_char_p]),
    "ls_timeline_start": (c_int, [c_void_p, c_char_p, c_int]),
    "ls_timeline_stop": (c_int, [c_void_p]),
    "ls_timeline_merge": (c_int, [POINTER(c_char_p), c_size_t, c_char_p]),
    "ls_counters": (c_int, [c_void_p, POINTER(Counter), c_size_t, POINTER(c_size_t)]),
    "ls_heap_holds": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(c_int)]),
    "ls_serve_allocations": (c_int, [c_void_p, POINTER(c_size_t), c_size_t, c_void_p, POINTER(c_int)]),
    "ls_engine_shares_memory": (c_int, [c_void_p]),
    "ls_block_make": (c_int, [c_void_p, c_size_t, c_uint32, POINTER(c_void_p)]),
    "ls_block_open": (c_int, [c_void_p, c_int32, c_uint64, POINTER(c_void_p)]),
    "ls_block_data": (c_void_p, [c_void_p]),
    "ls_block_place": (c_uint64, [c_void_p]),
    "ls_block_free": (None, [c_void_p]),
    "ls_owned_slice": (
        c_int,
        [c_size_t, c_int32, c_size_t, c_size_t, POINTER(c_size_t), POINTER(c_size_t)],
    ),
    "ls_optimizer_state_count": (c_int, [POINTER(OptimizerOptions), POINTER(c_size_t)]),
    "ls_optimizer_state_name": (c_int, [POINTER(OptimizerOptions), c_size_t, POINTER(c_char_p)]),
    "ls_optimizer_update": (
        c_int,
        [POINTER(OptimizerOptions), c_int64, POINTER(OptimizedTensor), c_size_t, c_size_t, c_void_p],
    ),
    "ls_shared_weights_make": (
        c_int,
        [c_void_p, POINTER(SharedTensor), c_size_t, POINTER(OptimizerOptions), c_size_t, POINTER(c_void_p)],
    ),
    "ls_shared_weights_place": (
        c_int,
        [c_void_p, c_size_t, POINTER(c_void_p), POINTER(c_void_p), POINTER(c_void_p)],
    ),
    "ls_shared_weights_serve": (c_int, [c_void_p, c_void_p, POINTER(c_int)]),
    "ls_shared_weights_gradients": (c_int, [c_void_p, POINTER(c_void_p), POINTER(c_size_t)]),
    "ls_shared_weights_steps": (c_int, [c_void_p, c_size_t, POINTER(c_int64)]),
    "ls_shared_weights_hash": (c_int, [c_void_p, POINTER(c_uint64)]),
    "ls_shared_weights_load": (c_int, [c_void_p, POINTER(SharedValues), c_size_t]),
    "ls_shared_weights_update": (
        c_int,
        [c_void_p, POINTER(OptimizerOptions), c_size_t, _OPTIONS, POINTER(c_void_p), c_size_t],
    ),
    "ls_shared_weights_free": (None, [c_void_p]),
}


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"Lockstep: {library._name} has no {name}: it is of another version.") from None
        function.restype = result
        function.argtypes = arguments
    found = library.ls_version().decode()
    if found != __version__:
        raise ImportError(
            f"Lockstep: {library._name} is version {found}, this Python package is version {__version__}. Build both "
            f"from one source: `pip install .` in the repository."
        )
    return library


library = _declare(_library.load())

# What updates weights where a reduction has made their gradients: for ReduceOptions.epilogue.
optimizer_epilogue = ctypes.cast(library.ls_optimizer_epilogue, c_void_p).value


def make_tensor(address: int, dtype: DType, shape: tuple[int, ...], name: bytes | None) -> Tensor:
    """A contiguous tensor in memory of the caller's. ctypes keeps the shape and the name alive with the struct."""
    dimensions = len(shape)
    # In the order of the fields: giving their names takes longer.
    return Tensor(_TENSOR_BYTES, address, dtype, 0, dimensions, (c_int64 * dimensions)(*shape), None, name)


def reduce_options(
    op: ReduceOp, prescale: float = 1.0, postscale: float = 1.0, group: c_void_p | None = None, kept: object = None
) -> ReduceOptions:
    """How to reduce. `kept` is the object that owns the group."""
    options = ReduceOptions(
        struct_size=ctypes.sizeof(ReduceOptions), op=op, prescale=prescale, postscale=postscale, group=group
    )
    options.kept = kept
    return options
