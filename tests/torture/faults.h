/* Calls that fail on purpose. Linked into a test program, faults.c replaces libc's malloc and file
 * functions for the program and every library in it; the call with the chosen number among the
 * chosen kinds fails, once or from then on. Controlled by calls in a test, or by the environment in
 * a whole program:
 *
 *   BATCHLLM_FAULTS=KINDS:K:HOW   KINDS joined by +; the K-th such call, from 1;
 *                                 HOW: once, forever (it and all after it fail), kill (SIGKILL in its
 *                                 place), torn (a write of half its bytes, then SIGKILL),
 *                                 wait=PATH (it waits until there is a file PATH; made PATH.here first)
 *   BATCHLLM_FAULTS=KINDS:@S:HOW  the first such call that has the call stack S
 *   BATCHLLM_FAULTS_COUNT=PATH    writes the numbers of calls and of those that failed there at the end
 *   BATCHLLM_FAULTS_STACKS=PATH   writes their call stacks there at the end, each once: "S CALLS\n"
 *   BATCHLLM_FAULTS_TRACE=PATH    what changes files is written there too (trace format: faults.c)
 *   BATCHLLM_FAULTS_INODES=1      a regular file has another inode number each time, as on some mounts
 */
#ifndef BATCHLLM_TESTS_FAULTS_H
#define BATCHLLM_TESTS_FAULTS_H

#ifdef __cplusplus
extern "C" {
#endif

enum {
    FAULT_ALLOC = 1,      /* malloc and everything that calls it; ENOMEM */
    FAULT_OPEN = 2,       /* open, fopen, opendir; EIO, the default */
    FAULT_READ = 4,       /* read, pread, readdir */
    FAULT_WRITE = 8,      /* write; ENOSPC */
    FAULT_SHORT = 16,     /* write of one byte less, then ENOSPC */
    FAULT_MAP = 32,       /* mmap of a file; ENOMEM */
    FAULT_SYNC = 64,      /* fsync, fdatasync */
    FAULT_RENAME = 128,   /* rename */
    FAULT_LOCK = 256,     /* flock; ENOLCK */
    FAULT_TRUNCATE = 512, /* ftruncate */
    FAULT_STAT = 1024,    /* stat, lstat, fstat */
    FAULT_UNLINK = 2048,  /* unlink */
    FAULT_THREAD = 4096,  /* pthread_create; EAGAIN */
    FAULT_KINDS = 13
};

/* The name of a kind's bit, as in the environment. */
const char *fault_name(unsigned kind);

/* Counts from now on; call k of the kinds fails, with `forever` also those after it. k = 0: only
 * counts. */
void faults_begin(unsigned kinds, long k, int forever);
/* 1: calls neither count nor fail until 0. For what a test does between the calls that it tests. */
void faults_pause(int paused);
/* Stops counting and failing; returns the number of calls. */
long faults_end(void);
/* The number of calls that failed since faults_begin. */
long faults_failed(void);
/* The number of memory blocks allocated and not freed. */
long faults_live_blocks(void);

#ifdef __cplusplus
}
#endif
#endif
