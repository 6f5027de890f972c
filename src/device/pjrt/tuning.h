/* Constants of the pjrt driver that someone may tune. */
#ifndef TOW_DEVICE_PJRT_TUNING_H_
#define TOW_DEVICE_PJRT_TUNING_H_

/* The oldest minor version that we accept, which is JAX's own limit too. Below
 * it the arguments of calls that we need have other fields. */
#define TOW_PJRT_MINOR_MIN 29

/* Uploads of at most this many bytes are copied while the call lasts, so that
 * the plugin need not keep track of the caller's memory. Larger ones are read
 * behind it: copying 64 KiB takes some 10 us here, about what a hop between
 * threads costs. */
#define TOW_PJRT_COPY_BYTES_MAX 65536

/* Shards that complete while others are under way are told to the loop together,
 * no sooner than this after the last time; and no later than the second number,
 * should a long run follow. Eight devices on two cores otherwise spend a third of
 * them on waking loops. */
#define TOW_PJRT_LATE_NS (200 * 1000)
#define TOW_PJRT_LOOK_NS (500 * 1000)

/* How often the loop goes on with executions that began on its thread and wait
 * for other members of their gang. They have waited for longer than that. */
#define TOW_PJRT_TURN_NS (100 * 1000)

/* Of all keys and values of one table together. Plugins put addresses and
 * topologies of a few KiB per host there. */
#define TOW_PJRT_TABLE_BYTES_MAX (64u << 20)

/* How long a probe may take. The CUDA plugin answers within 0.2 s where there is
 * no GPU and takes some seconds where there are eight; libtpu asks for minutes
 * for a metadata service that is not there. */
#define TOW_PJRT_PROBE_TIMEOUT_NS ((int64_t)30 * 1000000000)

#endif /* TOW_DEVICE_PJRT_TUNING_H_ */
