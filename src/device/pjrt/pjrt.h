/* The driver for any PJRT plugin: a shared object that exports GetPjrtApi.
 * Prefix: tow_pjrt_ (src/pjrt, our own plugin for JAX, has tow_plugin_).
 *
 * A plugin is loaded by its path and never unloaded, because few support that.
 * It runs in our process: a crash or a hang of the plugin is ours. Let a probe
 * try a plugin that may crash. */
#ifndef TOW_DEVICE_PJRT_PJRT_H_
#define TOW_DEVICE_PJRT_PJRT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"
#include "device/pjrt/table.h"

typedef struct tow_pjrt_open tow_pjrt_open_t;

/* The numbers of PJRT_NamedValue_Type. */
typedef enum tow_pjrt_value_type {
    TOW_PJRT_STRING = 0,
    TOW_PJRT_INT64 = 1,
    TOW_PJRT_INT64_LIST = 2,
    TOW_PJRT_FLOAT = 3,
    TOW_PJRT_BOOL = 4,
} tow_pjrt_value_type_t;

/* An option for the plugin's client; the plugin defines which exist. */
typedef struct tow_pjrt_value {
    const char *name;
    tow_pjrt_value_type_t type;
    union {
        const char *string;
        int64_t int64;
        const int64_t *int64_list;
        float float_;
        bool bool_;
    };
    size_t count; /* of a list */
} tow_pjrt_value_t;

/* Owned by the caller until `done`, with everything that it points to. */
struct tow_pjrt_open {
    const char *path;
    const tow_pjrt_value_t *values;
    size_t value_count;
    /* Lent until the driver has closed. NULL: the plugin gets no key-value
     * callbacks, and multi-host plugins refuse. */
    tow_pjrt_table_t *table;
    /* The path of tow_pjrt_probe: a child process that loads the plugin and
     * makes a client first, so that a crash or a hang there is an error here.
     * NULL: no probe. Not for several hosts: their probes would wait for each
     * other. */
    const char *probe_program;
    int64_t probe_timeout_ns; /* 0: TOW_PJRT_PROBE_TIMEOUT_NS */
    /* On TOW_OK the caller gets the driver, and closes it. */
    void (*done)(tow_pjrt_open_t *open, tow_status_t take_status,
                 tow_driver_t *take_driver);
};

/* Loads the plugin and makes its client, on a helper thread: that takes seconds
 * or, on several hosts, until all have started. NOT_FOUND: no such file;
 * INVALID_ARGUMENT: not a PJRT plugin; FAILED_PRECONDITION: another major
 * version, too old a minor one, or a function missing, which it names; ABORTED:
 * it crashed the probe; DEADLINE_EXCEEDED: the probe was not ready in time;
 * otherwise what the plugin says. */
tow_status_t tow_pjrt_open(tow_env_t *env, tow_pjrt_open_t *open) TOW_MUST_USE;

/* Only loads the plugin's file, in this thread: for a fork server, whose
 * children then open the plugin faster. Errors as above. */
tow_status_t tow_pjrt_preload(const char *path) TOW_MUST_USE;

struct tow_xla_query_handler;

/* Sets the handler of partition queries for programs that our xla_cpu compiles
 * in this process: see xla_cpu.h. Lent for ever. No effect on other plugins. */
void tow_pjrt_set_query_handler(tow_driver_t *driver,
                                const struct tow_xla_query_handler *asker);

/* For benchmarks: the time that XLA alone takes for `count` sequential
 * executions on this thread, without our queues, events and checks; see
 * time_directly in xla_cpu.h. The device must be idle and the arguments READY.
 * UNIMPLEMENTED with any plugin but our xla_cpu. */
tow_status_t tow_pjrt_time_xla_alone(tow_executable_t *executable,
                                     tow_buffer_t *const *arguments,
                                     size_t argument_count, uint64_t count,
                                     uint64_t *out_ns) TOW_MUST_USE;

#endif /* TOW_DEVICE_PJRT_PJRT_H_ */
