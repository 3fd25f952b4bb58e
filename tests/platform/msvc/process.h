/* Threads of Microsoft's C library: for syntax checks. */
#include <stdint.h>

uintptr_t _beginthreadex(void *security, unsigned stack_size,
                         unsigned(__stdcall *start_address)(void *), void *arguments,
                         unsigned flags, unsigned *identifier);
