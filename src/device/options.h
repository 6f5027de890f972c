/* Compile options: the few fields of a serialised xla.CompileOptionsProto that
 * say on which devices a program runs. All others pass through unchanged.
 *
 * Devices are named by their global ids, in a table with one row for each
 * replica and one column for each partition. */
#ifndef TOW_DEVICE_OPTIONS_H_
#define TOW_DEVICE_OPTIONS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"

/* Devices of one program: more than the largest machines have. */
#define TOW_ASSIGNED_DEVICE_COUNT_MAX ((size_t)1 << 20)
/* Options of clients. JAX sends some 10 KB, more with the layouts of thousands
 * of arguments. */
#define TOW_COMPILE_OPTIONS_BYTES_MAX ((size_t)16 << 20)
/* Entries of one map that are sorted. */
#define TOW_OPTIONS_MAP_COUNT_MAX ((size_t)64)

typedef struct tow_assignment {
    size_t replica_count;   /* 0: 1 */
    size_t partition_count; /* 0: 1 */
    /* Of replica r and partition p: device_ids[r * partition_count + p]. NULL:
     * the driver or the loader of the executable chooses. */
    const int64_t *device_ids; /* lent for the call */
} tow_assignment_t;

typedef enum tow_partitioner {
    /* SPMD for several partitions; its dialect is that of the program. */
    TOW_PARTITIONER_DEFAULT,
    TOW_PARTITIONER_SHARDY, /* the program's shardings are Shardy's */
} tow_partitioner_t;

typedef struct tow_compile_options {
    tow_assignment_t assignment;
    tow_partitioner_t partitioner;
} tow_compile_options_t;

/* Bytes of the message. */
size_t tow_compile_options_size(const tow_compile_options_t *options);
/* Writes that many bytes, and returns their number. */
size_t tow_compile_options_pack(const tow_compile_options_t *options,
                                uint8_t *bytes);

/* Replaces the devices in `given`, a serialised CompileOptionsProto, and keeps
 * everything else; sorts maps, so that equal options are equal bytes. The bytes
 * are the caller's; tow_free. INVALID_ARGUMENT: not such a message, or too
 * large. */
tow_status_t tow_compile_options_reassign(tow_bytes_t given,
                                          const tow_assignment_t *assignment,
                                          void **out_bytes, size_t *out_size)
    TOW_MUST_USE;

/* Removes the entry `key` of the options by name (env_option_overrides), whose
 * value is a text. *out_text is part of `given`; without data: there is no such
 * entry, and then *out_bytes is NULL and *out_size the size of `given`. The
 * bytes are the caller's; tow_free. INVALID_ARGUMENT: its value is no text. A
 * message that is malformed counts as one without the entry. */
tow_status_t tow_compile_options_take_text(tow_bytes_t given, const char *key,
                                           tow_bytes_t *out_text,
                                           void **out_bytes, size_t *out_size)
    TOW_MUST_USE;

/* The replicas and partitions of `given`; 1 where it has no number.
 * INVALID_ARGUMENT as above. */
tow_status_t tow_compile_options_counts(tow_bytes_t given,
                                        size_t *out_replica_count,
                                        size_t *out_partition_count)
    TOW_MUST_USE;

/* The devices of `given`, in the order of tow_assignment_t.device_ids, for the
 * counts above. False: it has none, or another number. */
bool tow_compile_options_devices(tow_bytes_t given, size_t replica_count,
                                 size_t partition_count,
                                 int64_t *out_device_ids);

/* A serialised xla.DeviceAssignmentProto; device_ids are known. The bytes are
 * the caller's; tow_free. */
tow_status_t tow_assignment_pack(const tow_assignment_t *assignment,
                                 void **out_bytes, size_t *out_size)
    TOW_MUST_USE;

#endif /* TOW_DEVICE_OPTIONS_H_ */
