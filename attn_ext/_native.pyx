# cython: language_level=3, freethreading_compatible=True, binding=True
"""The native backend: buffers in, one call without the GIL, errors out. No maths here.

`attention` and `reduce` take the descriptor that Python has checked. `plain_attention` and
`plain_reduction` are the short way for small calls: they look at exact arrays in C and decline
whatever is not the plain case, so that checks and messages live in one place, in Python.
"""

import atexit

import numpy

from cpython.buffer cimport PyBUF_FORMAT, PyBUF_STRIDES, PyBUF_WRITABLE
from cpython.buffer cimport PyBuffer_IsContiguous, PyBuffer_Release, PyObject_GetBuffer
from libc.math cimport sqrt
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memset


cdef extern from "Python.h":
    ctypedef struct PyThreadState:
        pass

    PyThreadState *PyEval_SaveThread() noexcept nogil
    void PyEval_RestoreThread(PyThreadState *) noexcept nogil
    int PyErr_CheckSignals() noexcept nogil
    void *PyErr_Occurred() noexcept


cdef extern from "pool.h":
    void fa_pool_shutdown() noexcept nogil
    int fa_pool_thread_count() noexcept nogil


cdef extern from "fa.h":
    ctypedef enum fa_status:
        FA_OK
        FA_NO_MEMORY
        FA_INTERRUPTED

    ctypedef enum fa_dtype:
        FA_BOOL
        FA_INT8
        FA_FLOAT16
        FA_BFLOAT16
        FA_FLOAT32
        FA_FLOAT64

    enum:
        FA_ARITHMETIC_VERSION
        FA_KEY_BLOCK
        FA_SEGMENT
        FA_MAX_AXES
        FA_MAX_LEAD

    ctypedef struct fa_array:
        void *data
        fa_dtype dtype
        Py_ssize_t lead[64]
        Py_ssize_t head, row, column

    ctypedef struct fa_plan:
        const char *kernel
        int64_t rows_per_task, n_task
        int n_thread
        size_t scratch_bytes

    ctypedef struct fa_attention:
        int n_lead
        int64_t lead_shape[64]
        int64_t n_batch, n_head, n_kv_head, n_query, n_key, d_head, d_value
        fa_array query, key, value, mask, bias, key_scale, value_scale, slopes
        fa_array output, lse, weights
        const void *sinks
        const int64_t *kv_lengths
        const int64_t *query_offset
        int is_causal
        int64_t window_left, window_right
        double scale, softcap
        int64_t key_start
        int n_thread
        int (*poll)(void *) noexcept nogil
        void *poll_context
        fa_plan *plan

    ctypedef fa_status (*fa_attention_function)(const fa_attention *) noexcept nogil

    ctypedef enum fa_reduction_kind:
        FA_SOFTMAX
        FA_LOG_SOFTMAX
        FA_LOGSUMEXP
        FA_SOFTMAX_VJP

    ctypedef struct fa_axes:
        void *data
        fa_dtype dtype
        Py_ssize_t stride[64]

    ctypedef struct fa_reduction:
        fa_reduction_kind kind
        int n_outer, n_reduced
        int64_t shape[64]
        fa_axes x, y, where, output
        int n_thread
        int (*poll)(void *) noexcept nogil
        void *poll_context

    ctypedef fa_status (*fa_reduction_function)(const fa_reduction *) noexcept nogil

    ctypedef struct fa_kernel_set:
        const char *name
        const char *arithmetic_class
        fa_attention_function attention_f32, attention_f64
        fa_reduction_function reduction_f32, reduction_f64

    int fa_kernel_set_count() noexcept nogil
    const fa_kernel_set *fa_kernel_set_at(int index) noexcept nogil
    int fa_kernel_set_runs_here(int index) noexcept nogil
    int fa_kernel_set_tile_rows(int index, int is_float64) noexcept nogil
    int fa_kernel_set_for(uint32_t ecx, uint32_t ebx, uint64_t xcr0) noexcept nogil
    const char *fa_compiler() noexcept nogil


ARITHMETIC_VERSION = FA_ARITHMETIC_VERSION
KEY_BLOCK = FA_KEY_BLOCK
SEGMENT = FA_SEGMENT
REDUCTION_KINDS = {  # the codes of Kind in _reduction.py
    "SOFTMAX": FA_SOFTMAX,
    "LOG_SOFTMAX": FA_LOG_SOFTMAX,
    "LOGSUMEXP": FA_LOGSUMEXP,
    "SOFTMAX_VJP": FA_SOFTMAX_VJP,
}

cdef dict _INDEX_OF_ISA = {
    fa_kernel_set_at(i).name.decode(): i for i in range(fa_kernel_set_count())
}
cdef dict _CODE_OF_DTYPE = {
    numpy.dtype("bool"): FA_BOOL,
    numpy.dtype("int8"): FA_INT8,
    numpy.dtype("float16"): FA_FLOAT16,
    numpy.dtype("float32"): FA_FLOAT32,
    numpy.dtype("float64"): FA_FLOAT64,
}
cdef object _ndarray = numpy.ndarray
cdef object _empty = numpy.empty
cdef object _float32 = numpy.dtype("float32")
cdef object _float64 = numpy.dtype("float64")

atexit.register(lambda: fa_pool_shutdown())


def isa_table():
    """Kernel sets of this build as (name, runs on this CPU, arithmetic class), best last."""
    return tuple(
        (name, bool(fa_kernel_set_runs_here(i)), fa_kernel_set_at(i).arithmetic_class.decode())
        for name, i in _INDEX_OF_ISA.items()
    )


def tile_rows(isa, dtype_name):
    """Query rows per tile: where a test finds the seams."""
    return fa_kernel_set_tile_rows(_INDEX_OF_ISA[isa], dtype_name == "float64")


def classify_cpu(leaf1_ecx, leaf7_ebx, xcr0):
    """Name of the kernel set that a CPU with these CPUID and XCR0 words would run."""
    return fa_kernel_set_at(fa_kernel_set_for(leaf1_ecx, leaf7_ebx, xcr0)).name.decode()


def compiler():
    """Name and version of the compiler that built the kernels."""
    return fa_compiler().decode()


def pool_thread_count():
    """Threads that the pool holds now, callers not counted."""
    return fa_pool_thread_count()


cdef int _poll(void *context) noexcept nogil:
    """Let Python handle signals, with the thread state that the call has put aside.

    Not `with gil`: it looks for the thread state in tables that are gone once the interpreter has
    ended. Restoring the state ends a daemon thread that comes so late.
    """
    cdef PyThreadState **state = <PyThreadState **>context
    PyEval_RestoreThread(state[0])
    cdef int stop = PyErr_CheckSignals() != 0
    state[0] = PyEval_SaveThread()
    return stop


cdef int _run(int isa, bint is_float64, fa_attention *call) except -1:
    """One call of a kernel set without the GIL; its status as an exception."""
    cdef const fa_kernel_set *kernels = fa_kernel_set_at(isa)
    cdef fa_attention_function run = kernels.attention_f64 if is_float64 else kernels.attention_f32
    cdef PyThreadState *state = PyEval_SaveThread()
    call.poll = _poll
    call.poll_context = &state
    cdef fa_status status = run(call)
    PyEval_RestoreThread(state)
    return _check(status)


cdef int _run_reduction(int isa, bint is_float64, fa_reduction *call) except -1:
    cdef const fa_kernel_set *kernels = fa_kernel_set_at(isa)
    cdef fa_reduction_function run = kernels.reduction_f64 if is_float64 else kernels.reduction_f32
    cdef PyThreadState *state = PyEval_SaveThread()
    call.poll = _poll
    call.poll_context = &state
    cdef fa_status status = run(call)
    PyEval_RestoreThread(state)
    return _check(status)


cdef int _check(fa_status status) except -1:
    """Turn a status into the exception that it stands for."""
    if status == FA_OK:
        return 0
    if status == FA_INTERRUPTED and PyErr_Occurred() != NULL:
        return -1  # what the signal handler raised
    if status == FA_NO_MEMORY:
        raise MemoryError("no memory for the scratch of the kernels")
    raise RuntimeError("the call was interrupted before it was complete")


cdef class _Buffers:
    """The buffers of one call; they stay exported until it is over."""

    cdef Py_buffer held[16]
    cdef int n_held

    def __dealloc__(self):
        cdef int i
        for i in range(self.n_held):
            PyBuffer_Release(&self.held[i])

    cdef Py_buffer *hold(self, object array, bint writeable) except NULL:
        cdef Py_buffer *view = &self.held[self.n_held]
        PyObject_GetBuffer(array, view, PyBUF_STRIDES | (PyBUF_WRITABLE if writeable else 0))
        self.n_held += 1
        return view

    cdef int describe(
        self, object array, fa_array *to, int n_lead, bint has_row, bint has_column, bint writeable
    ) except -1:
        """Fill `to` from an array of shape (*lead, head[, row][, column]), or leave it absent."""
        if array is None:
            return 0
        cdef int axis
        cdef Py_buffer *view = self.typed(array, &to.dtype, writeable)
        to.data = view.buf
        for axis in range(n_lead):
            to.lead[axis] = view.strides[axis] // view.itemsize
        axis = n_lead
        to.head = view.strides[axis] // view.itemsize
        if has_row:
            axis += 1
            to.row = view.strides[axis] // view.itemsize
        if has_column:
            axis += 1
            to.column = view.strides[axis] // view.itemsize
        return 0

    cdef Py_buffer *typed(self, object array, fa_dtype *dtype, bint writeable) except NULL:
        """The buffer and the data type of an array."""
        code = _CODE_OF_DTYPE.get(array.dtype)
        if code is None:  # bfloat16, whose arrays export no buffer
            array = array.view("uint16")
            code = FA_BFLOAT16
        dtype[0] = code
        return self.hold(array, writeable)

    cdef int describe_axes(self, object array, fa_axes *to, bint writeable) except -1:
        """Fill `to` from an array of any number of axes, or leave it absent."""
        if array is None:
            return 0
        cdef Py_buffer *view = self.typed(array, &to.dtype, writeable)
        cdef int axis
        to.data = view.buf
        for axis in range(view.ndim):
            to.stride[axis] = view.strides[axis] // view.itemsize
        return 0

    cdef const void *pointer(self, object array) except? NULL:
        if array is None:
            return NULL
        return self.hold(array, False).buf


def attention(d, isa):
    """Fill output, lse and weights of the AttentionDescriptor `d` with the kernels of `isa`."""
    cdef fa_attention call
    cdef _Buffers buffers = _Buffers()
    _describe(d, &call, buffers)
    _run(_INDEX_OF_ISA[isa], d.compute_dtype == _float64, &call)


def plan(d, isa):
    """What `attention` would do: (kernel, rows per task, tasks, threads, bytes of scratch)."""
    cdef fa_attention call
    cdef fa_plan found
    cdef _Buffers buffers = _Buffers()
    _describe(d, &call, buffers)
    call.plan = &found
    _run(_INDEX_OF_ISA[isa], d.compute_dtype == _float64, &call)
    kernel = found.kernel.decode() if found.kernel != NULL else "none"
    return kernel, found.rows_per_task, found.n_task, found.n_thread, found.scratch_bytes


cdef int _describe(object d, fa_attention *call, _Buffers buffers) except -1:
    """Fill `call` from the AttentionDescriptor `d`; `buffers` keeps its arrays in place."""
    cdef int n = len(d.lead), axis
    memset(call, 0, sizeof(call[0]))
    if n > FA_MAX_LEAD:
        raise ValueError(f"too many leading axes: {n}, at most {FA_MAX_LEAD} are supported")
    call.n_lead = n
    for axis in range(n):
        call.lead_shape[axis] = d.lead[axis]
    call.n_batch = d.n_batch
    call.n_head = d.n_head
    call.n_kv_head = d.n_kv_head
    call.n_query = d.n_query
    call.n_key = d.n_key
    call.d_head = d.d_head
    call.d_value = d.d_value
    buffers.describe(d.query, &call.query, n, True, True, False)
    buffers.describe(d.key, &call.key, n, True, True, False)
    buffers.describe(d.value, &call.value, n, True, True, False)
    buffers.describe(d.mask, &call.mask, n, True, True, False)
    buffers.describe(d.bias, &call.bias, n, True, True, False)
    buffers.describe(d.k_scale, &call.key_scale, n, False, True, False)
    buffers.describe(d.v_scale, &call.value_scale, n, False, True, False)
    buffers.describe(d.alibi_slopes, &call.slopes, n, False, False, False)
    buffers.describe(d.output, &call.output, n, True, True, True)
    buffers.describe(d.lse, &call.lse, n, True, False, True)
    buffers.describe(d.weights, &call.weights, n, True, True, True)
    call.sinks = buffers.pointer(d.sinks)
    call.kv_lengths = <const int64_t *>buffers.pointer(d.kv_lengths)
    call.query_offset = <const int64_t *>buffers.pointer(d.query_offset)
    call.is_causal = d.is_causal
    call.window_left = d.window_left
    call.window_right = d.window_right
    call.scale = d.scale
    call.softcap = d.softcap or 0.0
    call.key_start = d.key_start
    call.n_thread = d.num_threads
    return 0


def reduce(d, isa):
    """Fill the output of the ReductionDescriptor `d`."""
    cdef fa_reduction call
    cdef _Buffers buffers = _Buffers()
    cdef bint is_float64 = d.compute_dtype == _float64
    cdef int axis
    memset(&call, 0, sizeof(call))
    shape = d.x.shape
    call.kind = <fa_reduction_kind><int>d.kind
    call.n_outer = d.n_outer
    call.n_reduced = len(shape) - call.n_outer
    for axis in range(len(shape)):
        call.shape[axis] = shape[axis]
    buffers.describe_axes(d.x, &call.x, False)
    buffers.describe_axes(d.y, &call.y, False)
    buffers.describe_axes(d.where, &call.where, False)
    buffers.describe_axes(d.output, &call.output, True)
    call.n_thread = d.num_threads
    _run_reduction(_INDEX_OF_ISA[isa], is_float64, &call)


cdef bint _is_plain(Py_buffer *view, int ndim, int *is_float64) noexcept:
    """Native float32 or float64 in elements that are aligned, with no axis of size 0."""
    cdef int axis
    if view.ndim != ndim or view.format == NULL or view.format[0] == 0 or view.format[1] != 0:
        return False
    if view.format[0] == b"f":
        is_float64[0] = 0
    elif view.format[0] == b"d":
        is_float64[0] = 1
    else:
        return False
    if <uintptr_t>view.buf % <uintptr_t>view.itemsize != 0:
        return False
    for axis in range(ndim):
        if view.shape[axis] == 0 or view.strides[axis] % view.itemsize != 0:
            return False
    return True


cdef void _place(fa_array *to, Py_buffer *view, int is_float64) noexcept:
    cdef int axis, n_lead = view.ndim - 3
    to.data = view.buf
    to.dtype = FA_FLOAT64 if is_float64 else FA_FLOAT32
    for axis in range(n_lead):
        to.lead[axis] = view.strides[axis] // view.itemsize
    if view.ndim > 2:
        to.head = view.strides[view.ndim - 3] // view.itemsize
    to.row = view.strides[view.ndim - 2] // view.itemsize
    to.column = view.strides[view.ndim - 1] // view.itemsize


cdef bint _shapes_agree(const Py_buffer *q, const Py_buffer *k, const Py_buffer *v) noexcept:
    cdef int axis, n = q.ndim
    for axis in range(n - 3):
        if q.shape[axis] != k.shape[axis] or q.shape[axis] != v.shape[axis]:
            return False
    if n > 2 and (k.shape[n - 3] != v.shape[n - 3] or q.shape[n - 3] % k.shape[n - 3] != 0):
        return False
    return q.shape[n - 1] == k.shape[n - 1] and k.shape[n - 2] == v.shape[n - 2]


cdef bint _is_plain_attention(Py_buffer *views, bint is_causal, int *is_float64) noexcept:
    """Whether query, key and value have one type and shapes that need no broadcasting."""
    cdef int kind[3]
    cdef int i, ndim = views[0].ndim
    if ndim < 2 or ndim - 3 > FA_MAX_LEAD:
        return False
    for i in range(3):
        if not _is_plain(&views[i], ndim, &kind[i]) or kind[i] != kind[0]:
            return False
    is_float64[0] = kind[0]
    if not _shapes_agree(&views[0], &views[1], &views[2]):
        return False
    return not is_causal or views[0].shape[ndim - 2] == views[1].shape[ndim - 2]


cdef void _fill_plain(fa_attention *call, Py_buffer *views, int is_float64) noexcept:
    """The descriptor of plain query, key, value and output, without options."""
    cdef const Py_buffer *q = &views[0]
    cdef const Py_buffer *k = &views[1]
    cdef int axis, ndim = q.ndim
    memset(call, 0, sizeof(call[0]))
    call.n_batch = 1
    for axis in range(ndim - 3):
        call.n_lead += 1
        call.lead_shape[axis] = q.shape[axis]
        call.n_batch *= q.shape[axis]
    call.n_head = q.shape[ndim - 3] if ndim > 2 else 1
    call.n_kv_head = k.shape[ndim - 3] if ndim > 2 else 1
    call.n_query = q.shape[ndim - 2]
    call.n_key = k.shape[ndim - 2]
    call.d_head = q.shape[ndim - 1]
    call.d_value = views[2].shape[ndim - 1]
    _place(&call.query, &views[0], is_float64)
    _place(&call.key, &views[1], is_float64)
    _place(&call.value, &views[2], is_float64)
    _place(&call.output, &views[3], is_float64)
    call.window_left = -1
    call.window_right = -1


def plain_attention(query, key, value, is_causal, scale, num_threads, isa):
    """Attention of three plain arrays, or None if this call needs the general route."""
    cdef Py_buffer views[4]
    cdef fa_attention call
    cdef int i, ndim, is_float64, n_open = 0
    cdef double factor
    if type(query) is not _ndarray or type(key) is not _ndarray or type(value) is not _ndarray:
        return None
    if is_causal is not True and is_causal is not False:
        return None
    if scale is not None and type(scale) is not float:
        return None
    try:
        # arrays of other types may not export a buffer at all: they are not plain
        for array in (query, key, value):
            PyObject_GetBuffer(array, &views[n_open], PyBUF_STRIDES | PyBUF_FORMAT)
            n_open += 1
        if not _is_plain_attention(views, is_causal, &is_float64):
            return None
        ndim = views[0].ndim
        factor = scale if scale is not None else 1.0 / sqrt(<double>views[0].shape[ndim - 1])
        if not -1e38 < factor < 1e38:  # finite in float32 also times log2(e)
            return None
        shape = query.shape
        if views[2].shape[ndim - 1] != views[0].shape[ndim - 1]:
            shape = shape[:-1] + (views[2].shape[ndim - 1],)
        output = _empty(shape, _float64 if is_float64 else _float32)
        PyObject_GetBuffer(output, &views[3], PyBUF_STRIDES | PyBUF_WRITABLE)
        n_open = 4
        _fill_plain(&call, views, is_float64)
        call.is_causal = is_causal
        call.scale = factor
        call.n_thread = num_threads
        _run(_INDEX_OF_ISA[isa], is_float64, &call)
        return output
    except (BufferError, ValueError):
        if n_open < 3:
            return None
        raise
    finally:
        for i in range(n_open):
            PyBuffer_Release(&views[i])


cdef void _place_axes(fa_axes *to, Py_buffer *view, int axis, int is_float64) noexcept:
    """All axes of a buffer in order, but `axis` last."""
    cdef int i, n = 0
    to.data = view.buf
    to.dtype = FA_FLOAT64 if is_float64 else FA_FLOAT32
    for i in range(view.ndim):
        if i != axis:
            to.stride[n] = view.strides[i] // view.itemsize
            n += 1
    to.stride[n] = view.strides[axis] // view.itemsize


cdef bint _fits(Py_buffer *x, Py_buffer *o) noexcept:
    """Whether `o` can take the result: the shape of `x`, and either its memory or apart from it."""
    cdef int axis
    cdef char *x_end = <char *>x.buf + x.len
    cdef char *o_end = <char *>o.buf + o.len
    for axis in range(x.ndim):
        if x.shape[axis] != o.shape[axis]:
            return False
    if not (PyBuffer_IsContiguous(x, b"C") and PyBuffer_IsContiguous(o, b"C")):
        return False
    return x.buf == o.buf or x_end <= <char *>o.buf or o_end <= <char *>x.buf


def plain_reduction(kind, x, axis, out, num_threads, isa):
    """Softmax or log_softmax of a plain array, or None if this call needs the general route."""
    cdef Py_buffer views[2]
    cdef Py_buffer *source = &views[0]
    cdef Py_buffer *target = &views[1]
    cdef fa_reduction call
    cdef int ndim, reduced, i, n = 0, x64 = 0, o64 = 0, n_open = 0
    if type(x) is not _ndarray or type(axis) is not int:
        return None
    if out is not None and type(out) is not _ndarray:
        return None
    try:
        PyObject_GetBuffer(x, source, PyBUF_STRIDES | PyBUF_FORMAT)
        n_open = 1
        ndim = source.ndim
        if ndim < 1 or ndim > FA_MAX_AXES or not -ndim <= axis < ndim:
            return None
        if not _is_plain(source, ndim, &x64):
            return None
        result = _empty(x.shape, _float64 if x64 else _float32) if out is None else out
        PyObject_GetBuffer(result, target, PyBUF_STRIDES | PyBUF_FORMAT | PyBUF_WRITABLE)
        n_open = 2
        if out is not None:
            if not _is_plain(target, ndim, &o64) or x64 != o64 or not _fits(source, target):
                return None
        reduced = axis if axis >= 0 else axis + ndim
        memset(&call, 0, sizeof(call))
        call.kind = <fa_reduction_kind><int>kind
        call.n_outer = ndim - 1
        call.n_reduced = 1
        for i in range(ndim):
            if i != reduced:
                call.shape[n] = source.shape[i]
                n += 1
        call.shape[n] = source.shape[reduced]
        _place_axes(&call.x, source, reduced, x64)
        _place_axes(&call.output, target, reduced, x64)
        call.n_thread = num_threads
        _run_reduction(_INDEX_OF_ISA[isa], x64, &call)
        return result
    except (BufferError, ValueError):
        if n_open < 2:
            return None
        raise
    finally:
        for i in range(n_open):
            PyBuffer_Release(&views[i])
