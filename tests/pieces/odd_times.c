/* The XLA adapter with wrong device times, for
 * tests/integration/test_bad_input.py: ODD_TIMES_ADAPTER is the real adapter,
 * ODD_TIMES the number of nanoseconds that every execution reports. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/xla_cpu/abi.h"
#include "device/xla_cpu/xla_cpu.h"
#include "xla/pjrt/c/pjrt_c_api.h"

static void *find(const char *symbol)
{
    static void *library;
    const char *path = getenv("ODD_TIMES_ADAPTER");
    if (library == NULL && path != NULL)
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *address = library != NULL ? dlsym(library, symbol) : NULL;
    if (address != NULL) return address;
    fprintf(stderr, "odd_times: %s: %s\n", symbol, dlerror());
    exit(1);
}

static void odd_time(const struct PJRT_Event *event, uint64_t *out_busy_ns,
                     uint64_t *out_wait_ns)
{
    (void)event;
    *out_busy_ns = strtoull(getenv("ODD_TIMES"), NULL, 10);
    *out_wait_ns = *out_busy_ns;
}

__attribute__((visibility("default"))) uint64_t tow_xla_abi(void)
{
    uint64_t (*real)(void);
    void *address = find("tow_xla_abi");
    memcpy(&real, &address, sizeof(real));
    return real();
}

/* The adapter's extension is the first of its list. */
const PJRT_Api *GetPjrtApi(void);
__attribute__((visibility("default"))) const PJRT_Api *GetPjrtApi(void)
{
    static PJRT_Api api;
    static tow_xla_extension_t extension;
    const PJRT_Api *(*real)(void);
    void *address = find("GetPjrtApi");
    memcpy(&real, &address, sizeof(real));
    api = *real();
    memcpy(&extension, api.extension_start, sizeof(extension));
    if (extension.type != TOW_XLA_EXTENSION_TYPE) abort();
    extension.device_time = odd_time;
    api.extension_start = (PJRT_Extension_Base *)&extension;
    return &api;
}
