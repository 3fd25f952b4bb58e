/* What the C core returns; Python raises the matching exception. */
#ifndef FA_STATUS_H
#define FA_STATUS_H

typedef enum fa_status {
    FA_OK = 0,
    FA_NO_MEMORY = 1,   /* an allocation failed; the output is incomplete */
    FA_INTERRUPTED = 2, /* poll asked to stop (see pool.h); the output is incomplete */
} fa_status;

#endif
