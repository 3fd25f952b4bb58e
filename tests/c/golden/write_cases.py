"""Write the calls on record as C: ``python tests/c/golden/write_cases.py golden_cases.h``.

Every call becomes a descriptor of fa.h with its arrays as literals of their own types, so that the
byte order of the machine that runs them does not matter, and the digests of both classes. Arrays
that broadcast are written once and keep their strides of 0.
"""

import sys
from pathlib import Path

import numpy as np

from fast_attention._descriptor import describe_attention
from fast_attention._golden import CASES, Reduction, arguments, read_record
from fast_attention._reduction import Kind, describe_reduction

C_TYPES = {
    "bool": ("uint8_t", "FA_BOOL"),
    "int8": ("int8_t", "FA_INT8"),
    "float16": ("uint16_t", "FA_FLOAT16"),
    "bfloat16": ("uint16_t", "FA_BFLOAT16"),
    "float32": ("float", "FA_FLOAT32"),
    "float64": ("double", "FA_FLOAT64"),
    "int64": ("int64_t", None),
}
SIZES = "n_batch n_head n_kv_head n_query n_key d_head d_value is_causal window_left window_right"
OPERANDS = {  # member of fa_attention: attribute of the descriptor, axes after the leading ones
    "query": ("query", "head row column"),
    "key": ("key", "head row column"),
    "value": ("value", "head row column"),
    "mask": ("mask", "head row column"),
    "bias": ("bias", "head row column"),
    "key_scale": ("k_scale", "head column"),
    "value_scale": ("v_scale", "head column"),
    "slopes": ("alibi_slopes", "head"),
}
RESULTS = {"output": "head row column", "lse": "head row", "weights": "head row column"}


def literal(number, c_type):
    """Give one element as a C expression of its type."""
    if c_type not in ("float", "double"):
        return str(int(number))
    if np.isnan(number):
        return "NAN"
    if np.isinf(number):
        return "INFINITY" if number > 0 else "-INFINITY"
    return float(number).hex() + ("f" if c_type == "float" else "")


def unsigned_halves(array):
    return array.view(np.uint16) if array.dtype.name in ("float16", "bfloat16") else array


class Writer:
    """Lines of C, and the memory that results share."""

    def __init__(self):
        self.lines = []
        self.result_bytes = [0, 0, 0]

    def array(self, name, array):
        """Write what an array holds, once each; return its strides in elements."""
        order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
        once = tuple(slice(0, 1) if s == 0 else slice(None) for s in array.strides)
        held = np.ascontiguousarray(array[once].transpose(order))
        strides = [0] * array.ndim
        for axis, stride in zip(order, held.strides, strict=True):
            strides[axis] = stride // held.itemsize if array.strides[axis] else 0
        c_type, _ = C_TYPES[array.dtype.name]
        numbers = [literal(number, c_type) for number in unsigned_halves(held).ravel()] or ["0"]
        self.lines.append(f"static const {c_type} {name}[] = {{{', '.join(numbers)}}};")
        return strides

    def result(self, place, array):
        """Claim memory for a result; return its place and its strides in elements."""
        self.result_bytes[place] = max(self.result_bytes[place], array.nbytes)
        return f"result_{place}", [stride // array.itemsize for stride in array.strides]


def braces(members):
    return "{" + ", ".join(f".{name} = {value}" for name, value in members.items()) + "}"


def listed(numbers):
    return "{" + ", ".join(map(str, numbers)) + "}"


def described(data, array, strides, n_lead, axes):
    """Write an array as fa_array."""
    _, dtype = C_TYPES[array.dtype.name]
    members = {"data": f"(void *){data}", "dtype": dtype}
    if n_lead:
        members["lead"] = listed(strides[:n_lead])
    members |= dict(zip(axes.split(), strides[n_lead:], strict=True))
    return braces(members)


def attention(writer, name, call):
    """Write a call of attention; return its results."""
    d = describe_attention(**call, return_lse=True, return_weights=True)
    n_lead = len(d.lead)
    members = {"n_lead": n_lead, "n_thread": 1}
    if n_lead:
        members["lead_shape"] = listed(d.lead)
    members |= {size: int(getattr(d, size)) for size in SIZES.split()}
    members |= {"scale": float(d.scale).hex(), "softcap": float(d.softcap or 0.0).hex()}
    for member, (attribute, axes) in OPERANDS.items():
        array = getattr(d, attribute)
        if array is not None:
            strides = writer.array(f"{name}_{member}", array)
            members[member] = described(f"{name}_{member}", array, strides, n_lead, axes)
    for vector in ("sinks", "kv_lengths", "query_offset"):
        if getattr(d, vector) is not None:
            writer.array(f"{name}_{vector}", getattr(d, vector))
            members[vector] = f"{name}_{vector}"
    for place, (result, axes) in enumerate(RESULTS.items()):
        array = getattr(d, result)
        members[result] = described(
            array=array, n_lead=n_lead, axes=axes, **_placed(writer, place, array)
        )
    writer.lines.append(f"static const fa_attention {name} = {braces(members)};")
    return d, [d.output, d.lse, d.weights]


def _placed(writer, place, array):
    data, strides = writer.result(place, array)
    return {"data": data, "strides": strides}


def reduction(writer, name, call, function):
    """Write a call of the softmax family; return its result."""
    kind = Kind[function.upper()]
    first = call.pop("grad" if kind == Kind.SOFTMAX_VJP else "x")
    d = describe_reduction(kind, first, **call)
    members = {
        "kind": f"FA_{kind.name}",
        "n_outer": d.n_outer,
        "n_reduced": d.x.ndim - d.n_outer,
        "shape": listed(d.x.shape),
        "n_thread": 1,
    }
    for member in ("x", "y", "where", "output"):
        array = getattr(d, member)
        if array is None:
            continue
        if member == "output":
            data, strides = writer.result(0, array)
        else:
            data, strides = f"{name}_{member}", writer.array(f"{name}_{member}", array)
        members[member] = braces(
            {
                "data": f"(void *){data}",
                "dtype": C_TYPES[array.dtype.name][1],
                "stride": listed(strides or [0]),
            }
        )
    writer.lines.append(f"static const fa_reduction {name} = {braces(members)};")
    return d, [d.output]


def results(arrays, recorded):
    """Write where the results are and which digests they have in both classes."""
    entries = []
    for place, array in enumerate(arrays):
        name = list(recorded["fused"])[place]
        digests = [f'"{recorded[kind][name]}"' for kind in ("fused", "unfused")]
        entries.append(
            f'{{"{name}", result_{place}, {array.size}, {array.itemsize}, {", ".join(digests)}}}'
        )
    return "{" + ", ".join(entries) + "}"


def text():
    """Everything that golden.c includes."""
    record = read_record()
    writer, entries = Writer(), []
    for place, (name, case) in enumerate(CASES.items()):
        member = "reduction" if isinstance(case, Reduction) else "attention"
        if member == "reduction":
            d, arrays = reduction(writer, f"case_{place}", arguments(name), case.function)
        else:
            d, arrays = attention(writer, f"case_{place}", arguments(name))
        entries.append(
            braces(
                {
                    "name": f'"{name}"',
                    "is_float64": int(d.compute_dtype == np.float64),
                    member: f"&case_{place}",
                    "results": results(arrays, record[name]),
                }
            )
        )
    memory = [
        f"static uint64_t result_{place}[{-(-size // 8)}];"
        for place, size in enumerate(writer.result_bytes)
    ]
    table = ["static const golden_case golden_cases[] = {", *(e + "," for e in entries), "};"]
    return "\n".join([*memory, *writer.lines, *table]) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text())
