/* The controller of a cluster as a part of a process: its machine, the compiler
 * that it is lent, and what that needs. `tow controller` is a process that has
 * nothing else; the only worker of a small cluster may have it too. */
#ifndef TOW_TOOL_CONTROLLER_PART_H_
#define TOW_TOOL_CONTROLLER_PART_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "controller/controller.h"
#include "device/compiler/cache.h"
#include "tool/role.h"

typedef struct tow_controller_part {
    tow_driver_t *driver;     /* owned; for a direct compiler */
    tow_compiler_t *compiler; /* owned */
    tow_code_cache_t *cache;  /* owned; NULL: none */
    tow_controller_t *controller;
} tow_controller_part_t;

typedef struct tow_controller_part_options {
    const char *address;               /* where it listens */
    const char *plugin;                /* NULL: XLA on the CPU */
    const char *model;                 /* simulated devices; NULL: real ones */
    uint64_t compiler_count;           /* 0: the default */
    uint64_t relay_above, relay_group; /* 0: the defaults */
    uint64_t launcher_fd;              /* 0: none */
    bool keeps_compiled;
} tow_controller_part_options_t;

/* tow_controller_part_close also after an error. */
tow_status_t tow_controller_part_open(
    tow_controller_part_t *part, tow_role_t *role,
    const tow_controller_part_options_t *options) TOW_MUST_USE;
void tow_controller_part_close(tow_controller_part_t *part, tow_role_t *role);

#endif /* TOW_TOOL_CONTROLLER_PART_H_ */
