/* A device driver in the calling process with blocking calls: each runs the
 * event loop until its operation has completed. */
#ifndef TOW_SUPERVISOR_SYNC_DRIVER_H_
#define TOW_SUPERVISOR_SYNC_DRIVER_H_

#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "device/device.h"
#include "env/net/net.h"

typedef struct tow_sync_driver tow_sync_driver_t;

/* Where programs for real devices are compiled. */
typedef enum tow_sync_driver_compile_place {
    TOW_SYNC_DRIVER_COMPILE_IN_CHILD, /* a crash of the compiler does no harm */
    TOW_SYNC_DRIVER_COMPILE_IN_PROCESS, /* for plugins that cannot serialise executables */
} tow_sync_driver_compile_place_t;

typedef struct tow_sync_driver_options {
    /* Path of a PJRT plugin; NULL: XLA on the CPU, or `model`. */
    const char *plugin;
    /* Model of simulated devices; NULL: real devices. */
    const char *model;
    size_t device_count; /* of the adapter or the model; 0: 1 */
    tow_log_t log;
    tow_sync_driver_compile_place_t compile_place;
} tow_sync_driver_options_t;

tow_status_t tow_sync_driver_open(const tow_sync_driver_options_t *options,
                                  tow_sync_driver_t **out_self) TOW_MUST_USE;
void tow_sync_driver_close(tow_sync_driver_t *self);
/* Lent. */
tow_driver_t *tow_sync_driver_driver(tow_sync_driver_t *self);

/* Compiles for the first `device_count` devices, as replicas: for real devices
 * in a child process, unless the options say otherwise. UNIMPLEMENTED: the
 * plugin can compile only in this process. */
tow_status_t tow_sync_driver_compile(tow_sync_driver_t *self,
                                     tow_program_format_t format,
                                     tow_bytes_t program, size_t device_count,
                                     tow_executable_t **out_executable)
    TOW_MUST_USE;
tow_status_t tow_sync_driver_upload(tow_sync_driver_t *self, size_t device,
                                    const tow_shape_t *shape, const void *bytes,
                                    tow_buffer_t **out_buffer) TOW_MUST_USE;
/* Runs a copy of `run`, whose `done` is replaced. */
tow_status_t tow_sync_driver_run(tow_sync_driver_t *self, const tow_run_t *run)
    TOW_MUST_USE;
/* The caller frees *out_bytes with tow_free. */
tow_status_t tow_sync_driver_download(tow_sync_driver_t *self,
                                      tow_buffer_t *buffer, void **out_bytes,
                                      size_t *out_size) TOW_MUST_USE;

#endif /* TOW_SUPERVISOR_SYNC_DRIVER_H_ */
