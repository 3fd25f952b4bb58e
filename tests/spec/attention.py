"""Parameters, and A row: one call of attention, step by step as in the text.

    L query rows, S keys, D and Dv columns; arrays are in T unless said otherwise
    t (L, S) final scores, visible (L, S) bool; state (m (L,), l (L,), o (L, Dv))

The names m, l, o, M, L, O are those of the text.
"""
# ruff: noqa: E741, N806

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from . import formats
from .functions import KEY_BLOCK, SEGMENT, Constants, constants, exp2, log2, maximum, minimum, tanh
from .fused import CLASSES

LOG2E_64 = np.float64(float.fromhex("0x1.71547652b82fep+0"))
NEGATIVE_INFINITY = -np.inf


def attention(call, arithmetic_class):
    """Compute a call of the class "fused" or "unfused", bit by bit.

    ``call`` is what ``describe_attention`` returns; only its inputs are read.  Returns output
    (*lead, Hq, L, Dv), lse (*lead, Hq, L) and weights (*lead, Hq, L, S) as new arrays.
    """
    rows = (*call.lead, call.n_head, call.n_query)
    output = np.zeros((*rows, call.d_value), call.query.dtype)
    lse = np.zeros(rows, call.compute_dtype)
    weights = np.zeros((*rows, call.n_key), call.query.dtype)
    with np.errstate(all="ignore"):
        for batch, lead in enumerate(np.ndindex(call.lead)):
            for head in range(call.n_head):
                h = Head(call, CLASSES[arithmetic_class], batch, lead, head)
                output[(*lead, head)], lse[(*lead, head)], weights[(*lead, head)] = h.rows()
    return output, lse, weights


@dataclass
class State:
    """Maximum, sum of exponentials and weighted sum of values of some rows."""

    m: np.ndarray  # (L,)
    l: np.ndarray  # (L,)
    o: np.ndarray  # (L, Dv)

    def where(self, rows, other):
        """Return this state in ``rows`` (L,) bool, the other elsewhere."""
        return State(
            np.where(rows, self.m, other.m),
            np.where(rows, self.l, other.l),
            np.where(rows[:, None], self.o, other.o),
        )


class Head:
    """All rows of one query head in one batch."""

    def __init__(self, call, fma, batch, lead, head):
        T = call.compute_dtype.type
        at, kv_at = (*lead, head), (*lead, head // (call.n_head // call.n_kv_head))
        self.T, self.fma, self.k = T, fma, constants(T)
        self.query = formats.widen(call.query[at], T)  # (L, D)
        self.key = formats.widen(call.key[kv_at], T)  # (S, D)
        self.value = formats.widen(call.value[kv_at], T)  # (S, Dv)
        self.k_scale = None if call.k_scale is None else call.k_scale[kv_at]  # (S,)
        self.v_scale = None if call.v_scale is None else call.v_scale[kv_at]  # (S,)
        self.mask = None if call.mask is None else call.mask[at]  # (L, S) bool
        self.bias = None if call.bias is None else formats.saturated(call.bias[at], T)  # (L, S)
        self.slope = None if call.alibi_slopes is None else call.alibi_slopes[at]
        self.scale = T(call.scale)
        self.c2 = T(np.float64(call.scale) * LOG2E_64)
        self.softcap = None if call.softcap is None else T(call.softcap)
        self.sink2 = None if call.sinks is None else sink2(call.sinks[head], self.k)
        self.output_dtype = call.query.dtype
        self._set_positions(call, batch)

    def _set_positions(self, call, batch):
        offset = 0 if call.query_offset is None else call.query_offset[batch]
        self.p = np.arange(call.n_query, dtype=np.int64)[:, None] + np.int64(offset)  # (L, 1)
        self.j = np.arange(call.n_key, dtype=np.int64)  # (S,)
        length = call.n_key if call.kv_lengths is None else call.kv_lengths[batch]
        low, high = np.zeros_like(self.p), np.full_like(self.p, length)
        if call.window_left >= 0:
            low = np.maximum(low, self.p - call.window_left)
        if call.window_right >= 0:
            high = np.minimum(high, self.p + call.window_right + 1)
        if call.is_causal:
            high = np.minimum(high, self.p + 1)
        self.in_range = (low <= self.j) & (self.j < high)  # (L, S) bool
        a = call.key_start + self.j
        self.block = a // KEY_BLOCK
        self.segment = a // (KEY_BLOCK * SEGMENT)

    def rows(self):
        """Return output (L, Dv), lse (L,) and weights (L, S)."""
        t, visible = self.final_scores()
        total = self.state()
        for _, keys in groupby(self.j, lambda j: self.segment[j]):
            segment = self.state()
            for _, block in groupby(keys, lambda j: self.block[j]):
                segment = self.add_block(segment, t, visible, list(block))
            total = self.merge(total, segment)
        if self.sink2 is not None and self.sink2 != NEGATIVE_INFINITY:
            total = self.merge(total, self.state(self.sink2, 1))
        return self.results(t, visible, total)

    def state(self, m=NEGATIVE_INFINITY, l=0):
        n_row, T = len(self.query), self.T
        return State(
            np.full(n_row, m, T), np.full(n_row, l, T), np.zeros((n_row, self.value.shape[1]), T)
        )

    # 1. Score

    def dots(self):
        dot = np.zeros((len(self.query), len(self.key)), self.T)
        for d in range(self.query.shape[1]):
            dot = self.fma(self.query[:, d, None], self.key[None, :, d], dot)
        return dot if self.k_scale is None else dot * self.k_scale

    # 2. Final score t, in units of log2

    def final_scores(self):
        dot = self.dots()
        visible = self.in_range if self.mask is None else self.in_range & self.mask
        if self.softcap is None and self.slope is None and self.bias is None:
            t = dot * self.c2
        else:
            t = self.long_form(dot)
        if self.bias is not None:
            visible = visible & (self.bias != NEGATIVE_INFINITY)
        return t, visible & (t != NEGATIVE_INFINITY)

    def long_form(self, dot):
        T, k = self.T, self.k
        s = dot * self.scale
        if self.softcap is not None:
            s = self.softcap * tanh(s * (T(1) / self.softcap), self.fma)
        finite = np.isfinite(s)
        if self.slope is not None:
            s = s - self.slope * np.abs(self.p - self.j).astype(T)
        if self.bias is not None:
            s = s + self.bias
            finite = finite & np.isfinite(self.bias)
        t = s * k.log2e
        return np.where(finite, minimum(maximum(t, -k.huge), k.huge), t)

    # 3. Block

    def add_block(self, state, t, visible, keys):
        t, visible, m, l, o = t[:, keys], visible[:, keys], state.m, state.l, state.o
        m_new = m
        for j in range(len(keys)):
            m_new = np.where(visible[:, j], maximum(m_new, t[:, j]), m_new)
        ms = self.shift(m_new)
        alpha = exp2(m - ms, self.fma)
        p = np.where(visible, exp2(t - ms[:, None], self.fma), self.T(0))
        w = p if self.v_scale is None else p * self.v_scale[keys]
        lb, ob = np.zeros_like(l), np.zeros_like(o)
        for j, key in enumerate(keys):
            seen = visible[:, j]
            lb = np.where(seen, lb + p[:, j], lb)
            ob = np.where(seen[:, None], self.fma(w[:, j, None], self.value[key], ob), ob)
        new = State(m_new, self.fma(l, alpha, lb), self.fma(o, alpha[:, None], ob))
        return new.where(visible.any(axis=1), state)

    def shift(self, m):
        return np.where(m == NEGATIVE_INFINITY, self.T(0), m)

    # 4. Segments

    def merge(self, total, part):
        M, L, O = total.m, total.l, total.o
        m, l, o = part.m, part.l, part.o
        m_new = maximum(M, m)
        ms = self.shift(m_new)
        alpha = exp2(M - ms, self.fma)
        beta = exp2(m - ms, self.fma)
        new = State(
            m_new,
            self.fma(L, alpha, l * beta),
            self.fma(O, alpha[:, None], o * beta[:, None]),
        )
        return new.where(l != 0, total)  # l is at least 1, or NaN, where a key was visible

    # 5. Result, and 6. NaN

    def results(self, t, visible, total):
        M, L, O = total.m, total.l, total.o
        T, nan, nothing = self.T, np.isnan(L), L == 0
        output = np.where(nothing[:, None], T(0), O / L[:, None])
        output = np.where(nan[:, None], T(np.nan), output)
        lse = (M + log2(L, self.fma)) * self.k.ln2
        lse = np.where(nothing, T(NEGATIVE_INFINITY), np.where(nan, T(np.nan), lse))
        weights = exp2(t - self.shift(M)[:, None], self.fma) / L[:, None]
        weights = np.where(nan[:, None], T(np.nan), weights)
        weights = np.where(visible & ~nothing[:, None], weights, T(0))
        return (
            formats.result(output, self.output_dtype),
            formats.result(lse, T),
            formats.result(weights, self.output_dtype),
        )


def sink2(sink, k: Constants):
    """Return the sink in units of log2, where a finite one stays finite."""
    product = sink * k.log2e
    if np.isfinite(sink):
        return minimum(maximum(product, -k.huge), k.huge)
    return product
