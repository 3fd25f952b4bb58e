"""ONNX's Attention in words of the oracle: one dense mask and bias made of all that restricts it.

Nothing of this goes through lengths, offsets, windows or shorter arrays, on which the package's own
translation rests.
"""

# ruff: noqa: N803  (the operator calls its inputs Q, K and V)

import numpy as np
import oracle
import support

SCORE_TOLERANCE = 2.0**-24 * 64  # of the largest: at most 2 D + 28 roundings, with D up to 16


def by_heads(array, count):
    array = np.asarray(array)
    if array.ndim == 4:
        return array
    return np.stack(np.split(array, count, axis=2), axis=1)


def restrictions(q, k, attn_mask, n_past, lengths, attributes):
    """(B, Hq, L, S) bool of what is seen, and what is added to the scores, or None."""
    (n_batch, n_head, n_query, _), n_key = q.shape, k.shape[2]
    offset = np.full(n_batch, n_past) if lengths is None else lengths - n_query
    behind = np.arange(n_query)[:, None] + offset[:, None, None, None] - np.arange(n_key)
    keep = np.ones((n_batch, n_head, n_query, n_key), bool)
    if lengths is not None:
        keep &= np.arange(n_key) < lengths[:, None, None, None]
    if attributes.get("is_causal"):
        keep &= behind >= 0
    if attributes.get("left_window_size", -1) >= 0:
        keep &= behind <= attributes["left_window_size"]
    if attributes.get("right_window_size", -1) >= 0:
        keep &= -behind <= attributes["right_window_size"]
    if attn_mask is None:
        return keep, None
    short = np.broadcast_to(attn_mask, (*keep.shape[:3], attn_mask.shape[-1]))
    keep[..., short.shape[-1] :] = False
    if short.dtype == bool:
        keep[..., : short.shape[-1]] &= short
        return keep, None
    added = np.full(keep.shape, -np.inf)
    added[..., : short.shape[-1]] = short
    return keep & (added != -np.inf), np.where(added == -np.inf, 0, added)


def operator(
    Q, K, V, attn_mask=None, past_key=None, past_value=None, nonpad_kv_seqlen=None, **attributes
):  # fmt: skip
    """Return Y as an ``oracle.Reference`` by heads, and the scores of modes 0 to 2."""
    q = by_heads(Q, attributes.get("q_num_heads"))
    k, v = (by_heads(x, attributes.get("kv_num_heads")) for x in (K, V))
    n_past = 0 if past_key is None else past_key.shape[2]
    if past_key is not None:
        k, v = np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)
    keep, added = restrictions(q, k, attn_mask, n_past, nonpad_kv_seqlen, attributes)
    scale, softcap = attributes.get("scale"), attributes.get("softcap") or None
    expected = oracle.attention(q, k, v, keep, bias=added, scale=scale, softcap=softcap)
    repeated = np.repeat(k, q.shape[1] // k.shape[1], axis=1).astype(np.float64)
    factor = 1 / np.sqrt(q.shape[3]) if scale is None else scale
    with np.errstate(all="ignore"):
        raw = q.astype(np.float64) @ repeated.swapaxes(-1, -2) * factor
        capped = raw if softcap is None else softcap * np.tanh(raw / softcap)
        final = np.where(keep, capped if added is None else capped + added, -np.inf)
    return expected, (raw, capped, final)


def assert_near(result, Q, **call):
    """Compare Y, and the scores if there are any, with the operator."""
    expected, scores = operator(Q, **call)
    n_head = call.get("q_num_heads")
    y = by_heads(result.Y, n_head)
    assert result.Y.dtype == np.asarray(Q).dtype
    assert result.Y.ndim == np.asarray(Q).ndim
    support.assert_output_near(y, expected)
    mode = call.get("qk_matmul_output_mode")
    if mode is None:
        assert len(result) == 3
    elif mode == 3:
        support.assert_weights_near(result.qk_matmul_output, expected)
    else:
        assert_scores_near(result.qk_matmul_output, scores[mode])


def assert_scores_near(actual, expected):
    """Finite scores to their tolerance and half an ulp; the others as they are."""
    finite = np.isfinite(expected)
    wide = actual.astype(np.float64)
    np.testing.assert_array_equal(wide[~finite], expected[~finite])
    largest = np.abs(expected[finite]).max(initial=0)
    allowed = SCORE_TOLERANCE * largest + oracle.half_ulp(np.abs(expected[finite]), actual.dtype)
    assert (np.abs(wide[finite] - expected[finite]) <= allowed).all()
