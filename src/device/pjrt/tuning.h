/* Constants of the pjrt driver that someone may tune. */
#ifndef TOW_DEVICE_PJRT_TUNING_H_
#define TOW_DEVICE_PJRT_TUNING_H_

/* The oldest minor version that we accept, which is also JAX's. Older versions
 * have other fields in arguments of calls that we need. */
#define TOW_PJRT_MINOR_MIN 29

/* Uploads of at most this many bytes are copied within the call, so that the
 * plugin need not track the caller's memory. Larger ones are read
 * asynchronously: copying 64 KiB takes some 10 us here, about as long as a
 * hand-over between threads. */
#define TOW_PJRT_COPY_BYTES_MAX 65536

/* Completions of shards that end while others run are coalesced: the loop
 * learns of them at least COALESCE_NS after the last ones, and at most
 * COALESCE_FLUSH_NS later if a long run follows. Eight devices on two cores
 * otherwise spend a third of them on waking loops. */
#define TOW_PJRT_COALESCE_NS       (200 * 1000)
#define TOW_PJRT_COALESCE_FLUSH_NS (500 * 1000)

/* How often the loop continues executions that started on its thread and wait
 * for other members of their gang. They have waited longer than that before. */
#define TOW_PJRT_CONTINUE_INLINE_NS (100 * 1000)

/* Bytes of all keys and values of one table. Plugins store addresses and
 * topologies of a few KiB per host. */
#define TOW_PJRT_TABLE_BYTES_MAX (64u << 20)

/* Time limit of a probe. The CUDA plugin returns within 0.2 s without a GPU and
 * takes some seconds with eight; libtpu waits for minutes for a metadata
 * service that does not exist. */
#define TOW_PJRT_PROBE_TIMEOUT_NS ((int64_t)30 * 1000000000)

#endif /* TOW_DEVICE_PJRT_TUNING_H_ */
