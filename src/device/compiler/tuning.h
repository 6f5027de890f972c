/* Constants of the compilers that someone may tune. */
#ifndef TOW_DEVICE_COMPILER_TUNING_H_
#define TOW_DEVICE_COMPILER_TUNING_H_

#include <stddef.h>
#include <stdint.h>

/* Jobs in the queue. A client compiles a few programs at a time; submissions
 * beyond the limit are refused. */
#define TOW_COMPILER_QUEUE_COUNT_MAX ((size_t)1024)

/* Children of a compiler. One takes 0.3 GB once XLA is loaded, and
 * XLA's own threads already use all cores for one large program. */
#define TOW_COMPILER_CHILD_COUNT_MAX     ((size_t)64)
#define TOW_COMPILER_CHILD_COUNT_DEFAULT ((size_t)1)

/* Jobs that may wait at a time for their client's partition reply, in addition
 * to those that compile: each occupies a child, and the client's function may
 * itself compile. Children beyond the number above end with their job. */
#define TOW_COMPILER_QUERYING_COUNT_MAX ((size_t)8)

/* Time limit of one program, the start of the child included. Large models
 * take minutes; a program that loops for ever must not block the queue for
 * an hour. */
#define TOW_COMPILER_TIMEOUT_NS ((int64_t)300 * 1000000000)

/* Programs that one child compiles before it is replaced, which bounds its
 * leaks: 1 KiB for each of 200 small programs with XLA. Starting the next one
 * costs 0.4 s. */
#define TOW_COMPILER_COMPILE_COUNT_MAX ((uint64_t)1024)

/* Limits of messages between the processes. A program with large constants, or
 * its executable, can have hundreds of megabytes. */
#define TOW_COMPILER_PROGRAM_BYTES_MAX    ((uint64_t)2 << 30)
#define TOW_COMPILER_EXECUTABLE_BYTES_MAX ((uint64_t)2 << 30)

/* Memory for one signature: 16,384 arrays each way at 400 bytes, twice. */
#define TOW_COMPILER_SIGNATURE_ARENA_BYTES_MAX ((size_t)64 << 20)

/* The compile cache (cache.h): bytes of all files and of one, and their number.
 * JAX's small programs have 10 to 100 KB each, a model's step megabytes;
 * reading and checking take 1 ms a megabyte. Looking through 4,096 files after
 * each compilation takes 10 ms. */
#define TOW_CODE_CACHE_BYTES_MAX       ((uint64_t)1 << 30)
#define TOW_CODE_CACHE_ENTRY_BYTES_MAX ((uint64_t)256 << 20)
#define TOW_CODE_CACHE_COUNT_MAX       ((size_t)4096)

#endif /* TOW_DEVICE_COMPILER_TUNING_H_ */
