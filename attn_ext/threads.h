/* The few words of threading that pool.c needs, over pthreads, Win32, or nothing.
 *
 * FA_THREADS is 0 where a program cannot start threads (WebAssembly without shared memory, or
 * FA_NO_THREADS given by hand); then only the clock exists. Include this file before any system
 * header. Atomics are of pointer width, which every platform has without a library. */
#ifndef FA_THREADS_H
#define FA_THREADS_H

#if !defined(_WIN32) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L /* -std=c11 hides clock_gettime and the signal masks */
#endif

#include "architecture.h"

#include <stddef.h>
#include <stdint.h>

#if defined(FA_NO_THREADS) || (defined(__wasm__) && !defined(__EMSCRIPTEN_PTHREADS__))
#define FA_THREADS 0
#else
#define FA_THREADS 1
#define FA_STACK_SIZE (512 * 1024) /* musl would give 128 KiB, macOS 512 KiB, glibc 8 MiB */
#endif

#ifdef _WIN32
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>
#include <process.h>
#else
#include <time.h>
#endif

/* Monotonic time in nanoseconds from some fixed moment. */
static inline int64_t fa_clock_ns(void) {
#ifdef _WIN32
    LARGE_INTEGER ticks, frequency;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&frequency); /* a few GHz at most, so that nothing overflows */
    const int64_t n = ticks.QuadPart, per_second = frequency.QuadPart;
    return n / per_second * 1000000000 + n % per_second * 1000000000 / per_second;
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
#endif
}

#if FA_THREADS

#if defined(_MSC_VER) && !defined(__clang__)
#define FA_THREAD_LOCAL __declspec(thread)
#else
#define FA_THREAD_LOCAL _Thread_local
#endif

/* --- Atomics --- */

#ifdef FA_MSVC_INTRINSICS

static inline intptr_t fa_atomic_add(volatile intptr_t *word, intptr_t n) { /* the old value */
#ifdef _WIN64
    return InterlockedExchangeAdd64((volatile LONG64 *)word, n);
#else
    return InterlockedExchangeAdd((volatile LONG *)word, n);
#endif
}

static inline intptr_t fa_atomic_load(volatile intptr_t *word) { return fa_atomic_add(word, 0); }

static inline void fa_atomic_store(volatile intptr_t *word, intptr_t value) {
    InterlockedExchangePointer((void *volatile *)word, (void *)value);
}

#else

static inline intptr_t fa_atomic_add(volatile intptr_t *word, intptr_t n) { /* the old value */
    return __atomic_fetch_add(word, n, __ATOMIC_ACQ_REL);
}

static inline intptr_t fa_atomic_load(volatile intptr_t *word) {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline void fa_atomic_store(volatile intptr_t *word, intptr_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

#endif

/* Tells the core that this is a waiting loop. */
static inline void fa_pause(void) {
#ifdef _WIN32
    YieldProcessor();
#elif defined(__x86_64__) || defined(__i386__)
    __asm__ volatile("pause");
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* --- Locks, conditions, threads --- */

#ifdef _WIN32

typedef SRWLOCK fa_mutex;
typedef CONDITION_VARIABLE fa_condition;
typedef HANDLE fa_thread;
#define FA_MUTEX_INIT SRWLOCK_INIT
#define FA_CONDITION_INIT CONDITION_VARIABLE_INIT
#define FA_THREAD_MAIN unsigned __stdcall
typedef unsigned(__stdcall *fa_thread_main)(void *);

static inline void fa_lock(fa_mutex *mutex) { AcquireSRWLockExclusive(mutex); }

static inline void fa_unlock(fa_mutex *mutex) { ReleaseSRWLockExclusive(mutex); }

static inline void fa_wait(fa_condition *condition, fa_mutex *mutex) {
    SleepConditionVariableSRW(condition, mutex, INFINITE, 0);
}

/* Waits no longer than that; may return early. */
static inline void fa_wait_for(fa_condition *condition, fa_mutex *mutex, int64_t ns) {
    SleepConditionVariableSRW(condition, mutex, (DWORD)(ns / 1000000), 0);
}

static inline void fa_wake_one(fa_condition *condition) { WakeConditionVariable(condition); }

static inline void fa_wake_all(fa_condition *condition) { WakeAllConditionVariable(condition); }

static inline int fa_thread_start(fa_thread *thread, fa_thread_main main) { /* 0 = started */
    *thread = (HANDLE)_beginthreadex(NULL, FA_STACK_SIZE, main, NULL,
                                     STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
    return *thread == NULL;
}

static inline void fa_thread_join(fa_thread thread) {
    WaitForSingleObject(thread, INFINITE);
    CloseHandle(thread);
}

#else

#include <pthread.h>
#include <signal.h>

typedef pthread_mutex_t fa_mutex;
typedef pthread_cond_t fa_condition;
typedef pthread_t fa_thread;
#define FA_MUTEX_INIT PTHREAD_MUTEX_INITIALIZER
#define FA_CONDITION_INIT PTHREAD_COND_INITIALIZER
#define FA_THREAD_MAIN void *
typedef void *(*fa_thread_main)(void *);

static inline void fa_lock(fa_mutex *mutex) { pthread_mutex_lock(mutex); }

static inline void fa_unlock(fa_mutex *mutex) { pthread_mutex_unlock(mutex); }

static inline void fa_wait(fa_condition *condition, fa_mutex *mutex) {
    pthread_cond_wait(condition, mutex);
}

/* Waits no longer than that, as far as nobody sets the clock; may return early. */
static inline void fa_wait_for(fa_condition *condition, fa_mutex *mutex, int64_t ns) {
    struct timespec until; /* on the one clock that every platform's conditions know */
    clock_gettime(CLOCK_REALTIME, &until);
    ns += until.tv_nsec;
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_cond_timedwait(condition, mutex, &until);
}

static inline void fa_wake_one(fa_condition *condition) { pthread_cond_signal(condition); }

static inline void fa_wake_all(fa_condition *condition) { pthread_cond_broadcast(condition); }

/* Starts a thread that leaves every signal to the application's own threads, but for those that
 * its own instructions raise: blocked, they would end the process without a word. */
static inline int fa_thread_start(fa_thread *thread, fa_thread_main main) { /* 0 = started */
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0)
        return 1;
    pthread_attr_setstacksize(&attributes, FA_STACK_SIZE);
    sigset_t blocked, before;
    sigfillset(&blocked);
    sigdelset(&blocked, SIGSEGV);
    sigdelset(&blocked, SIGBUS);
    sigdelset(&blocked, SIGILL);
    sigdelset(&blocked, SIGFPE);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int failed = pthread_create(thread, &attributes, main, NULL) != 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return failed;
}

static inline void fa_thread_join(fa_thread thread) { pthread_join(thread, NULL); }

#endif
#endif /* FA_THREADS */
#endif
