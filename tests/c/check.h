/* What the drivers in this folder share: CHECK ends the program at the first failure. */
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

#endif
