/* The controller of a cluster inside a daemon, with its compiler and compile
 * cache. `tow controller` runs nothing else; the only worker of a small cluster
 * may run it beside its own service. */
#ifndef TOW_SUPERVISOR_CONTROLLER_SERVICE_H_
#define TOW_SUPERVISOR_CONTROLLER_SERVICE_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "controller/controller.h"
#include "device/compiler/cache.h"
#include "supervisor/daemon.h"

typedef struct tow_controller_service {
    tow_driver_t *driver;     /* owned; of the direct compiler */
    tow_compiler_t *compiler; /* owned */
    tow_code_cache_t *cache;  /* owned; NULL: none */
    tow_controller_t *controller;
} tow_controller_service_t;

typedef struct tow_controller_service_options {
    const char *address;               /* on which it listens */
    const char *plugin;                /* NULL: XLA on the CPU */
    const char *model;                 /* simulated devices; NULL: real ones */
    uint64_t compiler_count;           /* 0: the default */
    uint64_t relay_above, relay_group; /* 0: the defaults */
    uint64_t fork_server_fd;           /* 0: none */
    /* As in tow_controller_options_t. */
    uint64_t own_worker_count, first_process;
    bool use_compile_cache;
    uint64_t idle_timeout_s; /* without clients, the daemon ends; 0: never */
} tow_controller_service_options_t;

/* Call tow_controller_service_close also after an error. */
tow_status_t tow_controller_service_open(
    tow_controller_service_t *service, tow_daemon_t *daemon,
    const tow_controller_service_options_t *options) TOW_MUST_USE;
void tow_controller_service_close(tow_controller_service_t *service,
                                  tow_daemon_t *daemon);

#endif /* TOW_SUPERVISOR_CONTROLLER_SERVICE_H_ */
