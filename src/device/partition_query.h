/* Partition queries of compilers to the clients of their programs, and the
 * replies, as bytes: messages of src/wire/towpath.proto. They travel between
 * the process that compiles and the one that has the functions. */
#ifndef TOW_DEVICE_PARTITION_QUERY_H_
#define TOW_DEVICE_PARTITION_QUERY_H_

#include <stddef.h>

#include "base/arena.h"
#include "device/device.h"
#include "device/xla_cpu/xla_cpu.h"

/* The bytes are the caller's; tow_free. OUT_OF_RANGE for more than the message
 * may have. */
tow_status_t tow_partition_query_pack(const tow_xla_partition_query_t *query,
                                      void **out_bytes, size_t *out_size)
    TOW_MUST_USE;
tow_status_t tow_partition_reply_pack(const tow_xla_partition_reply_t *reply,
                                      void **out_bytes, size_t *out_size)
    TOW_MUST_USE;

/* The reverse, from untrusted bytes; the arena has everything that they point
 * to. The content of shapes, shardings and programs is not checked.
 * INVALID_ARGUMENT. */
tow_status_t tow_partition_query_unpack(tow_bytes_t bytes, tow_arena_t *arena,
                                        tow_xla_partition_query_t *out_query)
    TOW_MUST_USE;
tow_status_t tow_partition_reply_unpack(tow_bytes_t bytes, tow_arena_t *arena,
                                        tow_xla_partition_reply_t *out_reply)
    TOW_MUST_USE;

#endif /* TOW_DEVICE_PARTITION_QUERY_H_ */
