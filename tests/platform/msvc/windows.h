/* What the core uses of the Windows API, declared as Microsoft documents it: for syntax checks. */
#ifndef STUB_WINDOWS_H
#define STUB_WINDOWS_H

typedef void *HANDLE, *PVOID;
typedef int BOOL;
typedef long LONG;
typedef long long LONG64, LONGLONG;
typedef unsigned long DWORD;
typedef unsigned long ULONG;

typedef union {
    struct {
        DWORD LowPart;
        LONG HighPart;
    } u;
    LONGLONG QuadPart;
} LARGE_INTEGER;

typedef struct {
    PVOID Ptr;
} SRWLOCK, CONDITION_VARIABLE;

#define SRWLOCK_INIT {0}
#define CONDITION_VARIABLE_INIT {0}
#define INFINITE 0xffffffff
#define STACK_SIZE_PARAM_IS_A_RESERVATION 0x00010000

BOOL QueryPerformanceCounter(LARGE_INTEGER *count);
BOOL QueryPerformanceFrequency(LARGE_INTEGER *frequency);
LONG InterlockedExchangeAdd(LONG volatile *addend, LONG value);
LONG64 InterlockedExchangeAdd64(LONG64 volatile *addend, LONG64 value);
PVOID InterlockedExchangePointer(PVOID volatile *target, PVOID value);
void AcquireSRWLockExclusive(SRWLOCK *lock);
void ReleaseSRWLockExclusive(SRWLOCK *lock);
BOOL SleepConditionVariableSRW(CONDITION_VARIABLE *condition, SRWLOCK *lock, DWORD milliseconds,
                               ULONG flags);
void WakeConditionVariable(CONDITION_VARIABLE *condition);
void WakeAllConditionVariable(CONDITION_VARIABLE *condition);
DWORD WaitForSingleObject(HANDLE handle, DWORD milliseconds);
BOOL CloseHandle(HANDLE object);
void YieldProcessor(void);

#endif
