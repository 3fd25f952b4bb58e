/* Intrinsics of Microsoft's compiler that are functions to another: for syntax checks. */
#define ARM64_FPCR 0x5a20

void __cpuid(int information[4], int leaf);
void __cpuidex(int information[4], int leaf, int subleaf);
unsigned long long _xgetbv(unsigned int which);
void __prefetch(const void *address);
void __prefetch2(const void *address, unsigned char operation);
__int64 _ReadStatusReg(int which);
void _WriteStatusReg(int which, __int64 value);
