/* What the drivers in this folder share: CHECK ends the program at the first failure, and Clang's
 * thread sanitizer has the name that GCC gives it. */
#ifndef FA_CHECK_H
#define FA_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

#if defined(__has_feature) && !defined(__SANITIZE_THREAD__)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ /* as GCC says it */
#endif
#endif

#endif
