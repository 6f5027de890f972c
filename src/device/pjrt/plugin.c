#include "device/pjrt/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/macros.h"
#include "device/pjrt/pjrt.h"
#include "device/pjrt/tuning.h"
#include "device/pjrt/xla_home.h"
#include "device/xla_cpu/abi.h"

/* -- Errors ----------------------------------------------------------------- */

static tow_code_t code_of(const pjrt_plugin_t *plugin, const PJRT_Error *error)
{
    PJRT_Error_GetCode_Args args =
        PJRT_ARGS(PJRT_Error_GetCode, .error = error);
    PJRT_Error *failure = plugin->api.PJRT_Error_GetCode(&args);
    if (failure != NULL) {
        tow_pjrt_error_discard(plugin, failure);
        return TOW_UNKNOWN;
    }
    /* The numbers are the same. An unknown one, or OK, is not valid in an
     * error. */
    const int number = (int)args.code;
    return number >= TOW_CANCELLED && number <= TOW_UNAUTHENTICATED
               ? (tow_code_t)number
               : TOW_UNKNOWN;
}

static PJRT_Error_Message_Args message_of(const pjrt_plugin_t *plugin,
                                          const PJRT_Error *error)
{
    PJRT_Error_Message_Args args =
        PJRT_ARGS(PJRT_Error_Message, .error = error);
    plugin->api.PJRT_Error_Message(&args);
    if (args.message == NULL || args.message_size == 0) {
        args.message = "no message";
        args.message_size = strlen(args.message);
    }
    if (args.message_size > INT32_MAX) args.message_size = INT32_MAX;
    /* Our text follows. */
    while (args.message_size > 1 &&
           strchr(". \n", args.message[args.message_size - 1]) != NULL)
        args.message_size--;
    return args;
}

void tow_pjrt_error_discard(const pjrt_plugin_t *plugin, PJRT_Error *take_error)
{
    if (take_error == NULL) return;
    PJRT_Error_Destroy_Args args =
        PJRT_ARGS(PJRT_Error_Destroy, .error = take_error);
    plugin->api.PJRT_Error_Destroy(&args);
}

tow_status_t tow_pjrt_status(const pjrt_plugin_t *plugin,
                             PJRT_Error *take_error)
{
    if (TOW_LIKELY(take_error == NULL)) return TOW_OK;
    const PJRT_Error_Message_Args text = message_of(plugin, take_error);
    tow_status_t status =
        TOW_ERROR(code_of(plugin, take_error), "%.*s, of plugin %s",
                  (int)text.message_size, text.message, plugin->path);
    tow_pjrt_error_discard(plugin, take_error);
    return status;
}

tow_status_t tow_pjrt_status_on(const pjrt_plugin_t *plugin,
                                PJRT_Error *take_error, size_t device,
                                const char *kind)
{
    if (TOW_LIKELY(take_error == NULL)) return TOW_OK;
    const PJRT_Error_Message_Args text = message_of(plugin, take_error);
    tow_status_t status = TOW_ERROR(
        code_of(plugin, take_error), "%.*s, on device %zu (%s) of plugin %s",
        (int)text.message_size, text.message, device, kind, plugin->path);
    tow_pjrt_error_discard(plugin, take_error);
    return status;
}

/* -- The table -------------------------------------------------------------- */

typedef struct needed {
    const char *name;
    size_t offset;
} needed_t;

#define NEEDED(function)                        \
    {                                           \
#function, offsetof(PJRT_Api, function) \
    }

/* The functions that the driver requires. Without others only the feature that
 * uses them is missing. */
static const needed_t needed[] = {
    NEEDED(PJRT_Error_Destroy),
    NEEDED(PJRT_Error_Message),
    NEEDED(PJRT_Error_GetCode),
    NEEDED(PJRT_Event_Destroy),
    NEEDED(PJRT_Event_OnReady),
    NEEDED(PJRT_Client_Create),
    NEEDED(PJRT_Client_Destroy),
    NEEDED(PJRT_Client_PlatformName),
    NEEDED(PJRT_Client_AddressableDevices),
    NEEDED(PJRT_Client_Compile),
    NEEDED(PJRT_Client_BufferFromHostBuffer),
    NEEDED(PJRT_Device_GetDescription),
    NEEDED(PJRT_DeviceDescription_Id),
    NEEDED(PJRT_DeviceDescription_Kind),
    NEEDED(PJRT_Executable_Destroy),
    NEEDED(PJRT_Executable_NumOutputs),
    NEEDED(PJRT_Executable_OutputElementTypes),
    NEEDED(PJRT_Executable_OutputDimensions),
    NEEDED(PJRT_LoadedExecutable_Destroy),
    NEEDED(PJRT_LoadedExecutable_GetExecutable),
    NEEDED(PJRT_LoadedExecutable_AddressableDevices),
    NEEDED(PJRT_LoadedExecutable_Execute),
    NEEDED(PJRT_Buffer_Destroy),
    NEEDED(PJRT_Buffer_ToHostBuffer),
};

static void copy_table(pjrt_plugin_t *plugin, const PJRT_Api *api)
{
    const size_t size = api->struct_size < sizeof(plugin->api)
                            ? api->struct_size
                            : sizeof(plugin->api);
    memset(&plugin->api, 0, sizeof(plugin->api));
    memcpy(&plugin->api, api, size);
}

static tow_status_t check_version(const char *path, const PJRT_Api *api)
{
    const PJRT_Api_Version *version = &api->pjrt_api_version;
    if (api->struct_size < PJRT_STRUCT_SIZE(PJRT_Api, pjrt_api_version))
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "plugin %s: its table of %zu bytes has no version",
                         path, api->struct_size);
    if (version->major_version != PJRT_API_MAJOR)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "plugin %s speaks PJRT %d.%d; we speak major version "
                         "%d, get a plugin of that",
                         path, version->major_version, version->minor_version,
                         PJRT_API_MAJOR);
    if (version->minor_version < TOW_PJRT_MINOR_MIN)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "plugin %s speaks PJRT %d.%d; the oldest that we know "
                         "how to use is %d.%d",
                         path, version->major_version, version->minor_version,
                         PJRT_API_MAJOR, TOW_PJRT_MINOR_MIN);
    return TOW_OK;
}

static tow_status_t check_needed(const pjrt_plugin_t *plugin)
{
    for (size_t i = 0; i < TOW_COUNT_OF(needed); i++) {
        void *function;
        memcpy(&function, (const char *)&plugin->api + needed[i].offset,
               sizeof(function));
        if (function != NULL) continue;
        return TOW_ERROR(
            TOW_FAILED_PRECONDITION,
            "plugin %s (PJRT %d.%d) has no %s, which we need", plugin->path,
            plugin->api.pjrt_api_version.major_version,
            plugin->api.pjrt_api_version.minor_version, needed[i].name);
    }
    return TOW_OK;
}

static const tow_xla_extension_t *find_xla(const PJRT_Api *api)
{
    for (const PJRT_Extension_Base *node = api->extension_start; node != NULL;
         node = node->next)
        if ((int)node->type == TOW_XLA_EXTENSION_TYPE &&
            node->struct_size >= sizeof(tow_xla_extension_t))
            return (const tow_xla_extension_t *)node;
    return NULL;
}

static bool is_adapter(const PJRT_Api *api)
{
    for (const PJRT_Extension_Base *node = api->extension_start; node != NULL;
         node = node->next)
        if ((int)node->type == TOW_XLA_EXTENSION_TYPE) return true;
    return false;
}

/* Our own adapter shares structs with us that have no versions of their own. An
 * adapter older than this check reports no version. */
static tow_status_t check_adapter(const char *path, void *library,
                                  const PJRT_Api *api)
{
    uint64_t (*get_abi)(void) = NULL;
    void *symbol = dlsym(library, "tow_xla_abi");
    if (symbol == NULL && !is_adapter(api)) return TOW_OK;
    memcpy(&get_abi, &symbol, sizeof(get_abi));
    const uint64_t its = symbol != NULL ? get_abi() : 0;
    const uint64_t ours = tow_xla_abi_number();
    if (its == ours) return TOW_OK;
    return TOW_ERROR(
        TOW_FAILED_PRECONDITION,
        "adapter %s was built for another tow: its interface is %u.%08x, ours "
        "is %u.%08x: build both from one tree with `make`, or set TOW_XLA_CPU "
        "to the adapter that belongs to this program",
        path, (unsigned)(its >> 32), (unsigned)its, (unsigned)(ours >> 32),
        (unsigned)ours);
}

/* -- Loading ---------------------------------------------------------------- */

/* The dynamic linker's error message. */
static const char *linker_says(void)
{
    const char *why = dlerror();
    return why != NULL ? why : "the linker does not say why";
}

/* Our adapter, outside the folder in which it was built. */
static tow_status_t open_with_xla(const char *path, void **out_library)
{
    char folder[PATH_MAX];
    tow_xla_home(folder, sizeof(folder));
    if (!tow_xla_home_load(folder))
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "XLA is not on this host: run `tow setup`, or set "
                         "TOW_XLA_DIR to its folder (%s)",
                         linker_says());
    *out_library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (*out_library != NULL) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "plugin %s does not load with the XLA in %s: %s", path,
                     folder, linker_says());
}

static tow_status_t open_file(const char *path, void **out_library)
{
    if (access(path, R_OK) != 0) return TOW_ERRNO(errno, "plugin %s", path);
    *out_library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (*out_library != NULL) return TOW_OK;
    if (tow_xla_home_is_needed(path)) return open_with_xla(path, out_library);
    return TOW_ERROR(TOW_INVALID_ARGUMENT, "plugin %s does not load: %s", path,
                     linker_says());
}

tow_status_t tow_pjrt_preload(const char *path)
{
    void *library = NULL; /* Stays open. */
    return open_file(path, &library);
}

static tow_status_t find_api(const char *path, void *library,
                             const PJRT_Api **out_api)
{
    const PJRT_Api *(*get_api)(void) = NULL;
    void *symbol = dlsym(library, "GetPjrtApi");
    if (symbol == NULL)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s is not a PJRT plugin: it has no GetPjrtApi", path);
    memcpy(&get_api, &symbol, sizeof(get_api));
    *out_api = get_api();
    if (*out_api != NULL) return TOW_OK;
    return TOW_ERROR(TOW_FAILED_PRECONDITION,
                     "plugin %s: GetPjrtApi gave no table", path);
}

/* A plugin is initialised once per process, whichever driver opens it first:
 * the only per-process state of the driver. */
typedef struct initialized {
    const PJRT_Api *api;
    struct initialized *next;
} initialized_t;

static pthread_mutex_t initialized_lock = PTHREAD_MUTEX_INITIALIZER;
static initialized_t *initialized_plugins; /* never freed */

static bool is_initialized(const PJRT_Api *api)
{
    for (const initialized_t *each = initialized_plugins; each != NULL;
         each = each->next)
        if (each->api == api) return true;
    return false;
}

static tow_status_t initialize_locked(const pjrt_plugin_t *plugin,
                                      const PJRT_Api *api)
{
    if (is_initialized(api)) return TOW_OK;
    /* The system's allocator: it is never freed, and must not count as a leak
     * of the test that opened the plugin first. */
    initialized_t *mine = malloc(sizeof(*mine));
    if (mine == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    PJRT_Plugin_Initialize_Args args = {
        .struct_size = PJRT_Plugin_Initialize_Args_STRUCT_SIZE};
    tow_status_t status =
        tow_pjrt_status(plugin, plugin->api.PJRT_Plugin_Initialize(&args));
    if (status != TOW_OK) {
        free(mine);
        return tow_status_annotate(status, "initialising");
    }
    *mine = (initialized_t){.api = api, .next = initialized_plugins};
    initialized_plugins = mine;
    return TOW_OK;
}

static tow_status_t initialize(const pjrt_plugin_t *plugin, const PJRT_Api *api)
{
    if (plugin->api.PJRT_Plugin_Initialize == NULL) return TOW_OK;
    pthread_mutex_lock(&initialized_lock);
    tow_status_t status = initialize_locked(plugin, api);
    pthread_mutex_unlock(&initialized_lock);
    return status;
}

tow_status_t tow_pjrt_plugin_load(pjrt_plugin_t *plugin, const char *path)
{
    void *library = NULL; /* Stays open. */
    const PJRT_Api *api = NULL;
    *plugin = (pjrt_plugin_t){.path = path};
    TOW_RETURN_IF_ERROR(open_file(path, &library));
    TOW_RETURN_IF_ERROR(find_api(path, library, &api));
    TOW_RETURN_IF_ERROR(check_version(path, api));
    TOW_RETURN_IF_ERROR(check_adapter(path, library, api));
    copy_table(plugin, api);
    TOW_RETURN_IF_ERROR(check_needed(plugin));
    TOW_RETURN_IF_ERROR(initialize(plugin, api));
    copy_table(plugin,
               api); /* Some plugins fill in the table only when initialised. */
    plugin->xla = find_xla(api);
    return TOW_OK;
}
