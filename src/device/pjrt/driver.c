/* Opening and closing: the client, its devices, and the table of what the
 * plugin can do. */
#include "device/pjrt/pjrt_impl.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "device/pjrt/client_impl.h"
#include "device/pjrt/probe.h"

tow_status_t tow_pjrt_check_open(const pjrt_driver_t *driver)
{
    if (TOW_LIKELY(!driver->is_closing)) return TOW_OK;
    return TOW_ERROR(TOW_FAILED_PRECONDITION,
                     "the driver of plugin %s is closing", driver->plugin.path);
}

tow_status_t tow_pjrt_device_status(const pjrt_driver_t *driver,
                                    PJRT_Error *take_error, size_t device)
{
    if (TOW_LIKELY(take_error == NULL)) return TOW_OK;
    return tow_pjrt_status_on(&driver->plugin, take_error, device,
                              driver->driver.devices[device].kind);
}

/* -- Devices ---------------------------------------------------------------- */

static tow_status_t exhausted(void)
{
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

static tow_status_t copy_text(pjrt_driver_t *driver, const char *text,
                              size_t size, const char **out_text)
{
    *out_text = tow_arena_strndup(&driver->arena, text != NULL ? text : "",
                                  text != NULL ? size : 0);
    return *out_text != NULL ? TOW_OK : exhausted();
}

static tow_status_t memory_stats(tow_driver_t *base, size_t device,
                                 tow_memory_stats_t *out_stats)
{
    pjrt_driver_t *driver = pjrt_driver_of(base);
    PJRT_Device_MemoryStats_Args args =
        PJRT_ARGS(PJRT_Device_MemoryStats, .device = driver->devices[device]);
    TOW_RETURN_IF_ERROR(tow_pjrt_device_status(
        driver, driver->plugin.api.PJRT_Device_MemoryStats(&args), device));
    out_stats->bytes_in_use = (uint64_t)args.bytes_in_use;
    if (args.peak_bytes_in_use_is_set)
        out_stats->bytes_peak = (uint64_t)args.peak_bytes_in_use;
    if (args.bytes_limit_is_set)
        out_stats->bytes_limit = (uint64_t)args.bytes_limit;
    return TOW_OK;
}

static uint64_t recent_peak(tow_driver_t *base, size_t device)
{
    const pjrt_driver_t *driver = pjrt_driver_of(base);
    return (uint64_t)driver->plugin.xla->recent_peak(driver->devices[device]);
}

static void borrow(tow_driver_t *base, size_t device, int64_t bytes)
{
    const pjrt_driver_t *driver = pjrt_driver_of(base);
    driver->plugin.xla->borrow(driver->devices[device], bytes);
}

/* Our struct and the adapter's have the same layout: thousands of records are
 * not copied. */
_Static_assert(sizeof(tow_executed_t) == sizeof(tow_xla_executed_t) &&
                   offsetof(tow_executed_t, name) ==
                       offsetof(tow_xla_executed_t, name),
               "the same fields in the same order");

static size_t executed(tow_driver_t *base, size_t device, tow_executed_t *out,
                       size_t capacity)
{
    pjrt_driver_t *driver = pjrt_driver_of(base);
    const tow_xla_extension_t *xla = driver->plugin.xla;
    if (xla == NULL || xla->executed == NULL) return 0;
    return xla->executed(driver->devices[device], (tow_xla_executed_t *)out,
                         capacity);
}

void tow_pjrt_set_query_handler(tow_driver_t *base,
                                const tow_xla_query_handler_t *asker)
{
    const tow_xla_extension_t *xla = pjrt_driver_of(base)->plugin.xla;
    if (xla != NULL && xla->set_query_handler != NULL)
        xla->set_query_handler(asker);
}

/* 0 if the plugin does not report it. */
static uint64_t memory_of(pjrt_driver_t *driver, size_t device)
{
    tow_memory_stats_t stats = {0};
    if (driver->plugin.api.PJRT_Device_MemoryStats == NULL) return 0;
    tow_status_t status = memory_stats(&driver->driver, device, &stats);
    tow_status_ignore(status, "many plugins have no statistics");
    return stats.bytes_limit;
}

static tow_status_t read_device_name(pjrt_driver_t *driver,
                                     PJRT_DeviceDescription *description,
                                     const char **out_name)
{
    const PJRT_Api *api = &driver->plugin.api;
    PJRT_DeviceDescription_ToString_Args args = PJRT_ARGS(
        PJRT_DeviceDescription_ToString, .device_description = description);
    if (api->PJRT_DeviceDescription_ToString != NULL)
        tow_pjrt_error_discard(&driver->plugin,
                               api->PJRT_DeviceDescription_ToString(&args));
    return copy_text(driver, args.to_string, args.to_string_size, out_name);
}

static tow_status_t read_memory(pjrt_driver_t *driver, PJRT_Memory *memory,
                                tow_memory_info_t *out_info)
{
    const pjrt_plugin_t *plugin = &driver->plugin;
    PJRT_Memory_Id_Args id = PJRT_ARGS(PJRT_Memory_Id, .memory = memory);
    TOW_RETURN_IF_ERROR(
        tow_pjrt_status(plugin, plugin->api.PJRT_Memory_Id(&id)));
    PJRT_Memory_Kind_Args kind = PJRT_ARGS(PJRT_Memory_Kind, .memory = memory);
    TOW_RETURN_IF_ERROR(
        tow_pjrt_status(plugin, plugin->api.PJRT_Memory_Kind(&kind)));
    out_info->id = id.id;
    return copy_text(driver, kind.kind, kind.kind_size, &out_info->kind);
}

PJRT_Memory *tow_pjrt_default_memory(const pjrt_driver_t *driver,
                                     PJRT_Device *device)
{
    const pjrt_plugin_t *plugin = &driver->plugin;
    if (plugin->api.PJRT_Device_DefaultMemory == NULL) return NULL;
    PJRT_Device_DefaultMemory_Args args =
        PJRT_ARGS(PJRT_Device_DefaultMemory, .device = device);
    PJRT_Error *error = plugin->api.PJRT_Device_DefaultMemory(&args);
    PJRT_Memory *memory = error == NULL ? args.memory : NULL;
    tow_pjrt_error_discard(plugin, error);
    return memory;
}

/* None if the plugin does not report them. */
static tow_status_t read_memories(pjrt_driver_t *driver, size_t index,
                                  tow_device_info_t *out_info)
{
    const pjrt_plugin_t *plugin = &driver->plugin;
    PJRT_Device *device = driver->devices[index];
    if (plugin->api.PJRT_Device_AddressableMemories == NULL ||
        plugin->api.PJRT_Memory_Id == NULL ||
        plugin->api.PJRT_Memory_Kind == NULL)
        return TOW_OK;
    PJRT_Device_AddressableMemories_Args args =
        PJRT_ARGS(PJRT_Device_AddressableMemories, .device = device);
    PJRT_Error *error = plugin->api.PJRT_Device_AddressableMemories(&args);
    if (error != NULL) {
        tow_pjrt_error_discard(plugin, error);
        return TOW_OK;
    }
    const PJRT_Memory *first = tow_pjrt_default_memory(driver, device);
    tow_memory_info_t *infos = tow_arena_calloc(
        &driver->arena, args.num_memories + 1, sizeof(infos[0]));
    if (infos == NULL) return exhausted();
    for (size_t i = 0; i < args.num_memories; i++) {
        TOW_RETURN_IF_ERROR(read_memory(driver, args.memories[i], &infos[i]));
        infos[i].is_default = args.memories[i] == first;
    }
    out_info->memories = infos;
    out_info->memory_count = args.num_memories;
    return TOW_OK;
}

static tow_status_t read_device(pjrt_driver_t *driver, size_t index,
                                tow_device_info_t *out_info)
{
    const pjrt_plugin_t *plugin = &driver->plugin;
    PJRT_Device_GetDescription_Args description =
        PJRT_ARGS(PJRT_Device_GetDescription, .device = driver->devices[index]);
    TOW_RETURN_IF_ERROR(tow_pjrt_status(
        plugin, plugin->api.PJRT_Device_GetDescription(&description)));
    PJRT_DeviceDescription_Id_Args id =
        PJRT_ARGS(PJRT_DeviceDescription_Id,
                  .device_description = description.device_description);
    TOW_RETURN_IF_ERROR(
        tow_pjrt_status(plugin, plugin->api.PJRT_DeviceDescription_Id(&id)));
    PJRT_DeviceDescription_Kind_Args kind =
        PJRT_ARGS(PJRT_DeviceDescription_Kind,
                  .device_description = description.device_description);
    TOW_RETURN_IF_ERROR(tow_pjrt_status(
        plugin, plugin->api.PJRT_DeviceDescription_Kind(&kind)));
    out_info->id = id.id;
    TOW_RETURN_IF_ERROR(copy_text(driver, kind.device_kind,
                                  kind.device_kind_size, &out_info->kind));
    return read_device_name(driver, description.device_description,
                            &out_info->name);
}

static tow_status_t read_devices(pjrt_driver_t *driver)
{
    const pjrt_plugin_t *plugin = &driver->plugin;
    PJRT_Client_AddressableDevices_Args args =
        PJRT_ARGS(PJRT_Client_AddressableDevices, .client = driver->client);
    TOW_RETURN_IF_ERROR(tow_pjrt_status(
        plugin, plugin->api.PJRT_Client_AddressableDevices(&args)));
    const size_t count = args.num_addressable_devices;
    if (count == 0)
        return TOW_ERROR(TOW_UNAVAILABLE,
                         "plugin %s finds no device on this host",
                         plugin->path);
    tow_device_info_t *infos =
        tow_arena_calloc(&driver->arena, count, sizeof(infos[0]));
    driver->devices =
        tow_arena_calloc(&driver->arena, count, sizeof(driver->devices[0]));
    driver->completed_ns = tow_arena_calloc(&driver->arena, count,
                                            sizeof(driver->completed_ns[0]));
    if (infos == NULL || driver->devices == NULL ||
        driver->completed_ns == NULL)
        return exhausted();
    memcpy(driver->devices, args.addressable_devices,
           count * sizeof(driver->devices[0]));
    driver->driver.devices = infos;
    driver->driver.device_count = count;
    for (size_t i = 0; i < count; i++) {
        TOW_RETURN_IF_ERROR(read_device(driver, i, &infos[i]));
        TOW_RETURN_IF_ERROR(read_memories(driver, i, &infos[i]));
        infos[i].memory_bytes = memory_of(driver, i);
    }
    return TOW_OK;
}

static tow_status_t read_platform(pjrt_driver_t *driver)
{
    const pjrt_plugin_t *plugin = &driver->plugin;
    PJRT_Client_PlatformName_Args name =
        PJRT_ARGS(PJRT_Client_PlatformName, .client = driver->client);
    TOW_RETURN_IF_ERROR(
        tow_pjrt_status(plugin, plugin->api.PJRT_Client_PlatformName(&name)));
    TOW_RETURN_IF_ERROR(copy_text(driver, name.platform_name,
                                  name.platform_name_size,
                                  &driver->driver.platform));
    PJRT_Client_PlatformVersion_Args version =
        PJRT_ARGS(PJRT_Client_PlatformVersion, .client = driver->client);
    if (plugin->api.PJRT_Client_PlatformVersion != NULL)
        tow_pjrt_error_discard(
            plugin, plugin->api.PJRT_Client_PlatformVersion(&version));
    return copy_text(driver, version.platform_version,
                     version.platform_version_size, &driver->driver.version);
}

/* A plugin's attributes, among them its compiler's version; it may have
 * none. */
static tow_status_t read_stablehlo(pjrt_driver_t *driver)
{
    static const char name[] = "stablehlo_current_version";
    const pjrt_plugin_t *plugin = &driver->plugin;
    PJRT_Plugin_Attributes_Args args =
        PJRT_ARGS(PJRT_Plugin_Attributes, .extension_start = NULL);
    if (plugin->api.PJRT_Plugin_Attributes == NULL) return TOW_OK;
    tow_pjrt_error_discard(plugin, plugin->api.PJRT_Plugin_Attributes(&args));
    for (size_t i = 0; args.attributes != NULL && i < args.num_attributes;
         i++) {
        const PJRT_NamedValue *value = &args.attributes[i];
        if (value->type != PJRT_NamedValue_kInt64List ||
            value->value_size != 3 || value->name_size != strlen(name) ||
            memcmp(value->name, name, value->name_size) != 0)
            continue;
        char text[64];
        const int64_t *numbers = value->int64_array_value;
        const int size = snprintf(text, sizeof(text), "%lld.%lld.%lld",
                                  (long long)numbers[0], (long long)numbers[1],
                                  (long long)numbers[2]);
        return copy_text(driver, text, (size_t)size, &driver->driver.stablehlo);
    }
    return TOW_OK;
}

/* -- Closing ---------------------------------------------------------------- */

static void destroy_client(pjrt_driver_t *driver)
{
    tow_pjrt_client_destroy(&driver->plugin, driver->client);
    driver->client = NULL;
}

static void free_driver(pjrt_driver_t *driver)
{
    tow_vec_deinit(&driver->scratch.arguments);
    tow_vec_deinit(&driver->scratch.argument_lists);
    tow_vec_deinit(&driver->scratch.results);
    tow_vec_deinit(&driver->scratch.result_lists);
    tow_vec_deinit(&driver->scratch.events);
    tow_vec_deinit(&driver->scratch.non_donatable);
    tow_pool_deinit(&driver->buffers);
    tow_arena_deinit(&driver->arena);
    tow_free(driver);
}

/* On a helper thread: it may wait for threads of the plugin. */
static tow_status_t run_destroy(tow_work_t *work)
{
    destroy_client(TOW_CONTAINER_OF(work, pjrt_driver_t, destroying));
    return TOW_OK;
}

static void destroyed(tow_work_t *work, tow_status_t take_status)
{
    pjrt_driver_t *driver = TOW_CONTAINER_OF(work, pjrt_driver_t, destroying);
    /* An env that closes cancels work that has not started. */
    if (take_status != TOW_OK) destroy_client(driver);
    tow_status_release(take_status);
    const tow_closed_t closed = driver->closed;
    free_driver(driver);
    if (closed.run != NULL) closed.run(closed.context);
}

void tow_pjrt_driver_check(const pjrt_driver_t *driver)
{
    TOW_ASSERT(!driver->is_destroying ||
               (driver->is_closing && driver->operation_count == 0 &&
                driver->buffer_count == 0 && driver->executable_count == 0));
    TOW_ASSERT(driver->ready_first == NULL || driver->ready_last->next == NULL);
}

void tow_pjrt_check_closed(pjrt_driver_t *driver)
{
    tow_pjrt_driver_check(driver);
    if (!driver->is_closing || driver->is_destroying) return;
    if (driver->operation_count + driver->buffer_count +
            driver->executable_count >
        0)
        return;
    /* A post that is pending runs first, and checks again. */
    tow_pjrt_await_posters(driver);
    if (atomic_load(&driver->is_posted)) return;
    tow_env_timer_stop(driver->driver.env, &driver->coalesce_timer);
    tow_env_timer_stop(driver->driver.env, &driver->inline_timer);
    driver->is_destroying = true;
    driver->destroying = (tow_work_t){.run = run_destroy, .done = destroyed};
    tow_env_work_start(driver->driver.env, &driver->destroying);
}

void tow_pjrt_end(pjrt_driver_t *driver)
{
    TOW_ASSERT(driver->operation_count > 0 && !driver->is_destroying);
    driver->operation_count--;
    if (TOW_UNLIKELY(driver->is_closing)) tow_pjrt_check_closed(driver);
}

static void close_driver(tow_driver_t *base, tow_closed_t closed)
{
    pjrt_driver_t *driver = pjrt_driver_of(base);
    TOW_ASSERT(!driver->is_closing);
    driver->is_closing = true;
    driver->closed = closed;
    tow_log(&base->env->log, TOW_LOG_DEBUG, "driver closes",
            TOW_F_STR("plugin", driver->plugin.path),
            TOW_F_U64("operations", driver->operation_count),
            TOW_F_U64("buffers", driver->buffer_count),
            TOW_F_U64("executables", driver->executable_count));
    tow_pjrt_check_closed(driver);
}

/* -- Opening ---------------------------------------------------------------- */

static const tow_driver_ops_t all_ops = {
    .close = close_driver,
    .memory_stats = memory_stats,
    .recent_peak = recent_peak,
    .borrow = borrow,
    .executed = executed,
    .compile = tow_pjrt_compile,
    .load = tow_pjrt_load,
    .serialize = tow_pjrt_serialize,
    .executable_retain = tow_pjrt_executable_retain,
    .executable_release = tow_pjrt_executable_release,
    .allocate = tow_pjrt_allocate,
    .upload = tow_pjrt_upload,
    .upload_settle = tow_pjrt_upload_settle,
    .download = tow_pjrt_download,
    .share = tow_pjrt_share,
    .share_end = tow_pjrt_share_end,
    .share_export = tow_pjrt_share_export,
    .copy = tow_pjrt_copy,
    .buffer_state = tow_pjrt_buffer_state,
    .buffer_error = tow_pjrt_buffer_error,
    .buffer_address = tow_pjrt_buffer_address,
    .buffer_retain = tow_pjrt_buffer_retain,
    .buffer_release = tow_pjrt_buffer_release,
    .run = tow_pjrt_run,
    .abort = tow_pjrt_abort,
};

/* Leaves out entries whose functions the plugin's version does not have. */
static void choose_ops(pjrt_driver_t *driver)
{
    const PJRT_Api *api = &driver->plugin.api;
    tow_driver_ops_t *ops = &driver->ops;
    *ops = all_ops;
    if (api->PJRT_Device_MemoryStats == NULL) ops->memory_stats = NULL;
    const tow_xla_extension_t *xla = driver->plugin.xla;
    if (xla == NULL || xla->recent_peak == NULL) ops->recent_peak = NULL;
    if (xla == NULL || xla->borrow == NULL) ops->borrow = NULL;
    if (api->PJRT_Executable_Serialize == NULL) ops->serialize = NULL;
    if (api->PJRT_Executable_DeserializeAndLoad == NULL) ops->load = NULL;
    if (api->PJRT_Buffer_IsOnCpu == NULL ||
        api->PJRT_Buffer_UnsafePointer == NULL)
        ops->buffer_address = NULL;
    if (api->PJRT_Device_PoisonExecution == NULL) ops->abort = NULL;
    if (!tow_pjrt_can_defer(driver)) ops->upload_settle = NULL;
    if (api->PJRT_Buffer_CopyToDevice == NULL ||
        api->PJRT_Buffer_ReadyEvent == NULL)
        ops->copy = NULL;
    driver->driver.ops = ops;
    /* Transfer managers allocate at once. */
    driver->driver.has_free_promises =
        ops->upload_settle != NULL && driver->plugin.xla != NULL;
}

typedef struct opening {
    tow_work_t work;
    tow_env_t *env;
    tow_pjrt_open_t *open; /* the caller's */
    pjrt_driver_t *driver; /* owned until done */
} opening_t;

/* On a helper thread; no other thread has the driver yet. */
static tow_status_t run_open(tow_work_t *work)
{
    opening_t *opening = TOW_CONTAINER_OF(work, opening_t, work);
    const tow_pjrt_open_t *open = opening->open;
    pjrt_driver_t *driver = opening->driver;
    const char *path = NULL;
    TOW_RETURN_IF_ERROR(
        copy_text(driver, open->path, strlen(open->path), &path));
    if (open->probe_program != NULL) TOW_RETURN_IF_ERROR(tow_pjrt_probe(open));
    TOW_RETURN_IF_ERROR(tow_pjrt_plugin_load(&driver->plugin, path));
    TOW_RETURN_IF_ERROR(
        tow_pjrt_client_create(&driver->plugin, open, &driver->client));
    TOW_RETURN_IF_ERROR(read_platform(driver));
    TOW_RETURN_IF_ERROR(read_stablehlo(driver));
    TOW_RETURN_IF_ERROR(read_devices(driver));
    choose_ops(driver);
    const tow_xla_extension_t *xla = driver->plugin.xla;
    driver->has_device_times = xla != NULL && xla->device_time != NULL;
    return TOW_OK;
}

static void opened(tow_work_t *work, tow_status_t take_status)
{
    opening_t *opening = TOW_CONTAINER_OF(work, opening_t, work);
    tow_pjrt_open_t *open = opening->open;
    pjrt_driver_t *driver = opening->driver;
    tow_free(opening);
    if (take_status != TOW_OK) {
        destroy_client(driver);
        free_driver(driver);
        driver = NULL;
    }
    open->done(open, take_status, driver != NULL ? &driver->driver : NULL);
}

tow_status_t tow_pjrt_open(tow_env_t *env, tow_pjrt_open_t *open)
{
    TOW_ASSERT(open->done != NULL && open->path != NULL);
    opening_t *opening = tow_calloc(1, sizeof(*opening));
    pjrt_driver_t *driver = tow_calloc(1, sizeof(*driver));
    if (opening == NULL || driver == NULL) {
        tow_free(opening);
        tow_free(driver);
        return exhausted();
    }
    driver->driver = (tow_driver_t){.env = env, .name = "pjrt"};
    tow_arena_init(&driver->arena, 0);
    tow_pool_init(&driver->buffers, sizeof(pjrt_buffer_t), 0);
    tow_pjrt_completions_init(driver);
    *opening = (opening_t){.work = {.run = run_open, .done = opened},
                           .env = env,
                           .open = open,
                           .driver = driver};
    tow_env_work_start(env, &opening->work);
    return TOW_OK;
}
