/* Constants of the XLA CPU adapter that someone may tune. Measured on two
 * cores at 2.1 GHz, where waking a sleeping thread costs 15 to 60 us and a
 * scalar add in XLA 2.3 us. */
#ifndef TOW_DEVICE_XLA_CPU_TUNING_H_
#define TOW_DEVICE_XLA_CPU_TUNING_H_

/* How long a waiting thread looks before it sleeps: about what waking it costs.
 * Shorter, and a stream of small executions pays a wake-up each; longer, and
 * idle devices take time from busy ones. */
#define TOW_XLA_SPIN_NS 50000

/* Of that, how many looks pass without giving up the processor. A look with its
 * pause takes some 40 ns, a yield from 300 ns. More only helps when every
 * thread has a core of its own. */
#define TOW_XLA_SPIN_LOOKS_BEFORE_YIELD 100

/* Executions that may wait for one device; one more fails with
 * RESOURCE_EXHAUSTED. A queued execution holds its inputs and some 500 bytes. */
#define TOW_XLA_QUEUE_DEPTH_MAX 65536

/* A copy to the host of at most this many bytes is made by the thread that
 * finds the source ready, since handing it over costs more than copying; larger
 * ones by the client's copy thread, so that neither a caller nor a device waits
 * for them. 16 KiB copy in 1 to 2 us. */
#define TOW_XLA_INLINE_COPY_BYTES_MAX 16384

#endif /* TOW_DEVICE_XLA_CPU_TUNING_H_ */
