/* A driver of this host, for commands that use it one step at a time: each call
 * turns the loop until what it started has completed. */
#ifndef TOW_TOOL_LOCAL_H_
#define TOW_TOOL_LOCAL_H_

#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "device/device.h"
#include "env/net/net.h"

typedef struct tow_local tow_local_t;

/* Where programs for real devices are compiled. */
typedef enum tow_local_compile_place {
    TOW_LOCAL_CHILD,      /* where a crash of the compiler does no harm */
    TOW_LOCAL_IN_PROCESS, /* also for plugins that cannot serialise */
} tow_local_compile_place_t;

typedef struct tow_local_options {
    /* Path of a PJRT plugin; NULL: our XLA CPU adapter, or `model`. */
    const char *plugin;
    /* Name of a simulated device's model; NULL: a real device. */
    const char *model;
    size_t device_count; /* of the adapter or the model; 0: 1 */
    tow_local_compile_place_t compile_place;
} tow_local_options_t;

tow_status_t tow_local_open(const tow_local_options_t *options,
                            tow_local_t **out_local) TOW_MUST_USE;
void tow_local_close(tow_local_t *local);
/* Lent. */
tow_driver_t *tow_local_driver(tow_local_t *local);

/* Compiles for the first `device_count` devices, as replicas. In a child unless
 * the options say otherwise, and then loads what came out; programs of simulated
 * devices are ours and need none. UNIMPLEMENTED: the plugin can only compile in
 * this process. */
tow_status_t tow_local_compile(tow_local_t *local, tow_program_format_t format,
                               tow_bytes_t program, size_t device_count,
                               tow_executable_t **out_executable) TOW_MUST_USE;
tow_status_t tow_local_upload(tow_local_t *local, size_t device,
                              const tow_shape_t *shape, const void *bytes,
                              tow_buffer_t **out_buffer) TOW_MUST_USE;
/* Enqueues a copy of `run`, with a `done` of ours, and waits. */
tow_status_t tow_local_run(tow_local_t *local, const tow_run_t *run)
    TOW_MUST_USE;
/* The bytes are the caller's; tow_free. */
tow_status_t tow_local_download(tow_local_t *local, tow_buffer_t *buffer,
                                void **out_bytes, size_t *out_size)
    TOW_MUST_USE;

/* Where our adapter is: TOW_XLA_CPU, or beside this program in its build folder,
 * or where `make install` puts it. NOT_FOUND says how to get it. */
tow_status_t tow_local_find_adapter(char *path, size_t capacity) TOW_MUST_USE;

/* Before it is loaded: what XLA says for screens is nothing for logs. */
void tow_local_quiet_adapter(void);

#endif /* TOW_TOOL_LOCAL_H_ */
