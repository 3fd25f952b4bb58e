/* Memory of C11: for syntax checks. */
#include <stddef.h>

void *malloc(size_t size);
void *calloc(size_t n, size_t size);
void *realloc(void *memory, size_t size);
void free(void *memory);
char *getenv(const char *name);
