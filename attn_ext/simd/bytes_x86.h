/* 16 bytes in an SSE2 register, for every instruction set of x86. */
#define HAS_BYTES 1

typedef __m128i bytes;
FA_INLINE bytes b_load(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
FA_INLINE void b_store(void *p, bytes a) { _mm_storeu_si128((__m128i *)p, a); }
FA_INLINE bytes b_zip_low(bytes a, bytes b) { return _mm_unpacklo_epi8(a, b); }
FA_INLINE bytes b_zip_high(bytes a, bytes b) { return _mm_unpackhi_epi8(a, b); }
