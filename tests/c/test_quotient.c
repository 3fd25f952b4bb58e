/* p / s by multiplication with the rounded 1 / s and one correction, as v_quotient computes it for
 * float32, against division, wherever it could be wrong: kernels/passes.inl.h says where that is.
 *
 * With significands P, S in [2^23, 2^24) let M / 2^25 be a midpoint next to P / S, M odd. Then
 * k = P 2^25 - M S measures the distance, and an error needs |k| < 8: the correction misses p / s
 * by less than 3 + 4 in this unit. All P with such a k are the solutions of P 2^25 = k modulo S.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>

#define LOW (INT64_C(1) << 23)
#define HIGH (INT64_C(1) << 24)

static int64_t inverse(int64_t a, int64_t modulus) {
    int64_t r0 = modulus, r1 = a % modulus, x0 = 0, x1 = 1;
    while (r1 != 0) {
        const int64_t q = r0 / r1, r2 = r0 - q * r1, x2 = x0 - q * x1;
        r0 = r1, r1 = r2, x0 = x1, x1 = x2;
    }
    return x0 < 0 ? x0 + modulus : x0;
}

static float corrected_quotient(float p, float s, float z) {
    const float q = p * z;
    return fmaf(fmaf(q, -s, p), z, q);
}

/* All P for one S and one k; the number of them that come out wrong. */
static long count_wrong(int64_t s, int64_t odd, int64_t inverse_of_power, int64_t k, long *n) {
    const float z = 1.0f / (float)s;
    const int64_t residue = (k % odd + odd) % odd;
    const int64_t least = residue * inverse_of_power % odd;
    long n_wrong = 0;
    for (int64_t p = least + (LOW - least + odd - 1) / odd * odd; p < HIGH; p += odd, ++*n)
        n_wrong += corrected_quotient((float)p, (float)s, z) != (float)p / (float)s;
    return n_wrong;
}

int main(void) {
    long n = 0, n_wrong = 0;
    for (int64_t s = LOW; s < HIGH; s++) {
        int twos = 0;
        while ((s >> twos) % 2 == 0)
            twos++;
        if (twos > 2) /* every k is a multiple of 2^twos: none is within reach */
            continue;
        const int64_t odd = s >> twos, power = INT64_C(1) << (25 - twos);
        const int64_t inverse_of_power = inverse(power, odd);
        for (int64_t k = -7; k <= 7; k++)
            if (k != 0 && k % (INT64_C(1) << twos) == 0)
                n_wrong += count_wrong(s, odd, inverse_of_power, k / (1 << twos), &n);
    }
    if (n < 20000000 || n_wrong > 0) {
        printf("%ld of %ld quotients are wrong\n", n_wrong, n);
        return 1;
    }
    return 0;
}
