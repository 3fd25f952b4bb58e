/* The first part of immintrin.h, which asks for it too. */
#ifdef STUB_IMMINTRIN_H
#include_next <xmmintrin.h>
#else
#include "immintrin.h"
#endif
