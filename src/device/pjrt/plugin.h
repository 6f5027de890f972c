/* A loaded plugin: its table, truncated or padded to the size that we know. */
#ifndef TOW_DEVICE_PJRT_PLUGIN_H_
#define TOW_DEVICE_PJRT_PLUGIN_H_

#include "base/status.h"
#include "device/xla_cpu/xla_cpu.h"
#include "xla/pjrt/c/pjrt_c_api.h"

typedef struct pjrt_plugin {
    const char *path; /* lent */
    /* A copy. Functions that the plugin's version does not have are NULL here,
     * so that callers need not check struct_size. */
    PJRT_Api api;
    /* NULL in any plugin but our own xla_cpu. */
    const tow_xla_extension_t *xla;
} pjrt_plugin_t;

/* Arguments of a call, with their true size. */
#define PJRT_ARGS(type, ...) \
    ((type##_Args){.struct_size = type##_Args_STRUCT_SIZE, __VA_ARGS__})

/* Opens the file, checks version and table, and initialises the plugin unless
 * this process has done so before. Any thread. `path` is kept. */
tow_status_t tow_pjrt_plugin_load(pjrt_plugin_t *plugin, const char *path)
    TOW_MUST_USE;

/* The status of the plugin's error, which may be NULL: its message, followed by
 * ", on device 0 (cpu) of plugin PATH". */
tow_status_t tow_pjrt_status(const pjrt_plugin_t *plugin,
                             PJRT_Error *take_error) TOW_MUST_USE;
tow_status_t tow_pjrt_status_on(const pjrt_plugin_t *plugin,
                                PJRT_Error *take_error, size_t device,
                                const char *kind) TOW_MUST_USE;
/* Frees an error that does not matter. */
void tow_pjrt_error_discard(const pjrt_plugin_t *plugin,
                            PJRT_Error *take_error);

#endif /* TOW_DEVICE_PJRT_PLUGIN_H_ */
