/* From q . k to the final score t in units of log2: ARITHMETIC.md, step 2.
 *
 * Lanes may hold queries or keys; every operation is per lane. A key that a rule hides gets
 * t = -inf by selection, so whatever its score was cannot matter. From then on visible means
 * t != -inf.
 */

/* |p - j| for all lanes of a block is exact in T if the ends are: then it may be computed in T. */
#define EXACT_INTEGER (FA_REAL_BITS == 32 ? INT64_C(1) << 23 : INT64_C(1) << 52)

FA_INLINE real distance(int64_t position, int64_t key) {
    return (real)(position > key ? position - key : key - position);
}

FA_INLINE vec cap_score(const score_form *form, vec s) {
    return v_mul(v_set1(form->softcap), v_tanh(v_mul(s, v_set1(form->softcap_inverse))));
}

/* The long form after the softcap where something is not finite, or overflows. */
FA_NOINLINE vec saturated_form(const score_form *form, vec s, vec slope, vec apart, vec bias) {
    vmask finite = v_le(v_abs(s), v_set1(REAL_HUGE));
    if (form->has_slopes)
        s = v_sub(s, v_mul(slope, apart));
    if (form->has_bias) {
        finite = m_and(finite, v_le(v_abs(bias), v_set1(REAL_HUGE)));
        s = v_add(s, bias);
    }
    const vec t = v_mul(s, v_set1(LOG2E));
    const vec clamped = v_min(v_max(t, v_set1(-REAL_HUGE)), v_set1(REAL_HUGE));
    const vec final = v_select(finite, clamped, t);
    if (!form->has_bias)
        return final;
    return v_select(v_eq(bias, v_set1(-REAL_INFINITY)), v_set1(-REAL_INFINITY), final);
}

/* The long form after the softcap. `apart` and `bias` count only where the form has slopes and a
 * bias. A finite result comes from finite numbers alone, and is not clamped. */
FA_INLINE vec long_form(const score_form *form, vec s, vec slope, vec apart, vec bias) {
    vec t = s;
    if (form->has_slopes)
        t = v_sub(t, v_mul(slope, apart));
    if (form->has_bias)
        t = v_add(t, bias);
    t = v_mul(t, v_set1(LOG2E));
    if (m_all(v_le(v_abs(t), v_set1(REAL_HUGE))))
        return t;
    return saturated_form(form, s, slope, apart, bias);
}
