/* Numbers and words of the plugin that may be tuned. */
#ifndef TOW_PJRT_TUNING_H_
#define TOW_PJRT_TUNING_H_

/* The kinds of memory that devices have, by tow_memory_kind_t: as JAX names them.
 * The first is the default. */
#define TOW_PJRT_MEMORY_KINDS "device", "pinned_host", "unpinned_host"

/* The version of StableHLO that JAX writes programs for is the one that the
 * cluster's XLA reads, as its workers say. If they do not it is this one, which
 * every XLA reads. Too new, and the cluster refuses programs by name of the op; too
 * old, and JAX cannot write newer ops at all. The variable of the environment goes
 * before both. */
#define TOW_PJRT_STABLEHLO_DEFAULT  1, 0, 0
#define TOW_PJRT_STABLEHLO_MINIMUM  0, 9, 0
#define TOW_PJRT_STABLEHLO_VARIABLE "TOW_STABLEHLO"

/* Arguments or devices of an execution whose lists lie on the stack: 8 bytes
 * each. */
#define TOW_PJRT_FEW 64

/* Who asks for the event of a buffer, or for a few bytes of one that is ready,
 * as a rule waits for it next: so it turns the net itself for so long, and no
 * other thread need be woken for it, nor wake it. One that was in vain, and so
 * many of the next return at once: then the keeper looks out. */
#define TOW_PJRT_LINGER_NS         (1000 * 1000)
#define TOW_PJRT_LINGER_SKIP_COUNT 4u

/* Elements along each side of the tiles that an array is turned in, between the
 * order of its dimensions here and there: those of a tile are in few lines of
 * memory and few pages. device_put of 64 MiB of f32 that NumPy has column by
 * column: 255 ms, and 735 row by row (2 vCPUs that other work shared). */
#define TOW_PJRT_TILE_COUNT 32

/* Threads that make calls of the user's functions for computations, at once; and
 * room for the text of one that fails: a traceback. */
#define TOW_PJRT_CALLBACK_THREADS_MAX 32u
#define TOW_PJRT_CALLBACK_ERROR_SIZE  2000

/* Custom calls that frameworks may register functions for; JAX has one. */
#define TOW_PJRT_PARTITIONERS_MAX 16u

/* A step that takes longer is told of on standard error, unless TOW_STUCK_WARNING
 * says another number. The cluster speaks every TOW_LATE_NS of the controller. */
#define TOW_PJRT_STUCK_WARNING_S 10u

#endif /* TOW_PJRT_TUNING_H_ */
