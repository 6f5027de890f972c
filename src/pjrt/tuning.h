/* Tunable constants of the plugin. */
#ifndef TOW_PJRT_TUNING_H_
#define TOW_PJRT_TUNING_H_

/* JAX's names of the kinds of memory, by tow_memory_kind_t. The first is the
 * default. */
#define TOW_PLUGIN_MEMORY_KINDS "device", "pinned_host", "unpinned_host"

/* JAX writes programs in the StableHLO version that the cluster's XLA accepts,
 * as its workers report it; by default in this one, which every XLA accepts.
 * If it is too new, the cluster refuses programs with the name of the op; if
 * it is too old, JAX cannot write newer ops. The environment variable
 * overrides both. */
#define TOW_PLUGIN_STABLEHLO_DEFAULT  1, 0, 0
#define TOW_PLUGIN_STABLEHLO_MINIMUM  0, 9, 0
#define TOW_PLUGIN_STABLEHLO_VARIABLE "TOW_STABLEHLO"

/* The compile option that names an executable for towpath_executable_named. */
#define TOW_PLUGIN_NAME_OPTION "towpath_name"

/* Arguments or devices of an execution whose lists are on the stack: 8 bytes
 * each. */
#define TOW_PLUGIN_FEW 64

/* A thread that asks for the event of a buffer, or for a few bytes of a ready
 * one, usually waits for it next: so it polls the net itself for this time,
 * and no other thread is woken. After a poll without success this many calls
 * do not poll, and the progress thread does instead. */
#define TOW_PLUGIN_POLL_NS         (1000 * 1000)
#define TOW_PLUGIN_POLL_SKIP_COUNT 4u

/* Elements along each side of a tile when an array's dimensions are reordered:
 * a tile touches few cache lines and pages. device_put of 64 MiB of f32 that
 * NumPy has column by column: 255 ms, and 735 row by row (2 vCPUs under other
 * load). */
#define TOW_PLUGIN_TILE_COUNT 32

/* Threads for concurrent callbacks of computations; and room for the error
 * text of one, a traceback. */
#define TOW_PLUGIN_CALLBACK_THREADS_MAX 32u
#define TOW_PLUGIN_CALLBACK_ERROR_SIZE  2000

/* Custom calls that frameworks may register functions for; JAX has one. */
#define TOW_PLUGIN_PARTITIONERS_MAX 16u

/* A step that takes longer causes a warning on standard error;
 * TOW_STUCK_WARNING overrides this. The controller reports stalled runs every
 * TOW_STALL_NS. */
#define TOW_PLUGIN_STALL_WARNING_S 10u

#endif /* TOW_PJRT_TUNING_H_ */
