"""Hypothesis strategies: whole calls of attention, any shape, layout, type and combination."""

import os

import numpy as np
import oracle
import support
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

LARGEST_LENGTH = oracle.KEY_BLOCK + 8
WINDOW_SIDES = st.one_of(st.none(), st.integers(-1, 9))
LEADS = [
    ((), (), ()), ((2,), (2,), (2,)), ((2,), (1,), (1,)), ((), (3,), (1,)),
    ((2, 1), (1, 3), (3,)), ((1, 1, 2), (2,), ()),
]  # fmt: skip


def repeatable(max_examples):
    """Return the settings of a property test: always the same examples, and `engine` allowed.

    The variable FAST_ATTENTION_TEST_EXAMPLES asks for so many new ones instead.
    """
    new_examples = int(os.environ.get("FAST_ATTENTION_TEST_EXAMPLES", 0))
    return settings(
        max_examples=new_examples or max_examples,
        deadline=None,
        derandomize=not new_examples,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@st.composite
def lengths(draw, largest=LARGEST_LENGTH):
    """Mostly short, now and then around a key block."""
    return draw(st.one_of(st.integers(0, 9), st.integers(0, 20), st.integers(0, largest)))


@st.composite
def operands(draw):
    """Query, key, value, and the scales that int8 needs."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    leads = draw(st.sampled_from(LEADS))
    kv_heads, group = draw(st.sampled_from([(1, 1), (2, 1), (1, 3), (2, 2)]))
    n_query, n_key = draw(lengths()), draw(lengths())
    d, dv = draw(st.integers(0, 18)), draw(st.integers(1, 18))
    size = draw(st.sampled_from([0.0, 0.01, 1.0, 1.0, 8.0]))
    shapes = [
        (*leads[0], kv_heads * group, n_query, d),
        (*leads[1], kv_heads, n_key, d),
        (*leads[2], kv_heads, n_key, dv),
    ]
    arrays, scales = {}, {}
    for name, shape in zip(("query", "key", "value"), shapes, strict=True):
        kinds = support.FLOATS if name == "query" else [*support.FLOATS, np.int8]
        dtype = draw(st.sampled_from(kinds))
        if dtype == np.int8:
            x, scales[f"{name[0]}_scale"] = support.quantised(rng, *shape)
        else:
            x = support.normal(rng, *shape, dtype=dtype, size=size)
        arrays[name] = support.LAYOUTS[draw(st.sampled_from(list(support.LAYOUTS)))](x)
    return arrays, scales, np.broadcast_shapes(*leads), rng


def score_shape(arrays, lead):
    n_head, n_query = arrays["query"].shape[-3:-1]
    return (*lead, n_head, n_query, arrays["key"].shape[-2])


@st.composite
def broadcast_to(draw, shape):
    """Draw a shape that broadcasts to ``shape``: some axes of 1, some leading axes left out."""
    axes = [n if draw(st.booleans()) else 1 for n in shape]
    return tuple(axes[draw(st.integers(0, len(axes))) :])


@st.composite
def masks(draw, shape, rng):
    """Draw a mask, a bias, both or none."""
    kind = draw(st.sampled_from(["none", "bool", "float", "bias", "bool and bias"]))
    options = {}
    if "bool" in kind:
        density = draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
        options["attn_mask"] = rng.random(draw(broadcast_to(shape))) < density
    if kind in ("float", "bias", "bool and bias"):
        dtype = draw(st.sampled_from(support.FLOATS))
        bias_shape = draw(broadcast_to(shape))
        bias = np.asarray(2 * rng.standard_normal(bias_shape))
        bias = np.where(rng.random(bias_shape) < draw(st.sampled_from([0, 0.5])), -np.inf, bias)
        options["attn_mask" if kind == "float" else "bias"] = bias.astype(dtype)
    for name, x in options.items():
        if x.ndim >= 2:
            layout = draw(st.sampled_from(["contiguous", "reversed", "gapped", "column_major"]))
            if not (layout == "gapped" and x.dtype == bool):
                options[name] = support.LAYOUTS[layout](x)
    return options


@st.composite
def ranges(draw, lead, n_key, rng):
    """Causal, window, offset and lengths in any combination."""
    options = {"is_causal": draw(st.booleans())}
    options["window"] = draw(
        st.one_of(st.none(), st.integers(-1, 9), st.tuples(WINDOW_SIDES, WINDOW_SIDES))
    )
    offset = draw(st.sampled_from(["int", "end", "array"]))
    options["query_offset"] = {
        "int": draw(st.integers(-12, LARGEST_LENGTH)), "end": "end",
        "array": rng.integers(-9, n_key + 9, draw(broadcast_to(lead))),
    }[offset]  # fmt: skip
    kind = draw(st.sampled_from(["none", "int", "array"]))
    if kind == "int":
        options["kv_lengths"] = draw(st.integers(0, n_key))
    elif kind == "array":
        options["kv_lengths"] = rng.integers(0, n_key + 1, draw(broadcast_to(lead)))
    return options


@st.composite
def score_options(draw, lead, n_head, rng):
    options = {
        "scale": draw(st.sampled_from([None, None, 0.0, 0.3, -1.0])),
        "softcap": draw(st.sampled_from([None, None, 0.7, 20.0])),
    }
    sinks = draw(st.sampled_from(["none", "scalar", "per head", "some"]))
    values = rng.standard_normal(n_head)
    if sinks == "some":
        values[::2] = -np.inf
    if sinks != "none":
        options["sinks"] = 0.5 if sinks == "scalar" else values
    if draw(st.booleans()):
        options["alibi_slopes"] = rng.random(draw(broadcast_to((*lead, n_head)))) / 4
    return options


@st.composite
def calls(draw):
    """Draw (arrays, options) of a valid call."""
    arrays, options, lead, rng = draw(operands())
    shape = score_shape(arrays, lead)
    options |= draw(masks(shape, rng))
    options |= draw(ranges(lead, shape[-1], rng))
    options |= draw(score_options(lead, shape[-3], rng))
    options["return_lse"], options["return_weights"] = draw(st.booleans()), draw(st.booleans())
    options["num_threads"] = draw(st.sampled_from([None, 1, 2]))
    return arrays, options
