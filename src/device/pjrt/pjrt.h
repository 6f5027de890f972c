/* The driver for any PJRT plugin: a shared object that exports GetPjrtApi.
 *
 * A plugin is loaded by its path and never unloaded, for few survive that. It
 * runs in our process, and one that aborts or hangs takes us along: let a probe
 * try one that is not known to behave. */
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

/* An option for the plugin's client: what there is depends on the plugin. */
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

/* Owned by the caller until `done`; all that it points to, too. */
struct tow_pjrt_open {
    const char *path;
    const tow_pjrt_value_t *values;
    size_t value_count;
    /* Lent until the driver has closed. NULL: the plugin gets no key-value
     * callbacks, and those for several hosts refuse. */
    tow_pjrt_table_t *table;
    /* The path of tow_pjrt_probe: a child process that loads the plugin and
     * makes a client first, so that a crash or a hang there is an error here.
     * NULL: at once. Not for several hosts: they would wait for the probes. */
    const char *probe_program;
    int64_t probe_timeout_ns; /* 0: TOW_PJRT_PROBE_TIMEOUT_NS */
    /* On TOW_OK the caller gets the driver, and closes it. */
    void (*done)(tow_pjrt_open_t *open, tow_status_t take_status,
                 tow_driver_t *take_driver);
};

/* Loads the plugin and makes its client, on a helper thread: that takes
 * seconds, or, on several hosts, until all are there. NOT_FOUND: no such file;
 * INVALID_ARGUMENT: no PJRT plugin; FAILED_PRECONDITION: another major version,
 * too old a minor one, or a function missing, which it names; ABORTED: it
 * crashed the probe; DEADLINE_EXCEEDED: the probe was not ready in time;
 * otherwise what the plugin says. */
tow_status_t tow_pjrt_open(tow_env_t *env, tow_pjrt_open_t *open) TOW_MUST_USE;

/* Only loads the plugin's file, in this thread, and keeps it: for a process that
 * forks others, which then open the plugin at once. Errors as above. */
tow_status_t tow_pjrt_preload(const char *path) TOW_MUST_USE;

struct tow_xla_asker;

/* Whom programs that our xla_cpu compiles in this process may ask: see xla_cpu.h.
 * Lent for good. Without effect on any other plugin, which has no such questions. */
void tow_pjrt_set_asker(tow_driver_t *driver,
                        const struct tow_xla_asker *asker);

/* For benchmarks: how long XLA alone takes for `count` executions, one after the
 * other on this thread, without any of our queues, events and checks; see
 * time_directly in xla_cpu.h. The device must be idle and the arguments READY.
 * UNIMPLEMENTED with any plugin but our xla_cpu. */
tow_status_t tow_pjrt_time_directly(tow_executable_t *executable,
                                    tow_buffer_t *const *arguments,
                                    size_t argument_count, uint64_t count,
                                    uint64_t *out_ns) TOW_MUST_USE;

#endif /* TOW_DEVICE_PJRT_PJRT_H_ */
