/* Host functions in programs that Python makes. */
#include <string.h>

#include "pjrt/program_impl.h"

static tow_status_t exhausted(void)
{
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

void tow_plugin_host_destroy(plugin_host_t *host)
{
    if (host == NULL) return;
    if (host->function != NULL) tow_function_release(host->function);
    if (host->first != NULL) tow_function_release(host->first);
    tow_free(host->path);
    tow_free(host->symbol);
    tow_free(host->types);
    tow_free(host);
}

static tow_status_t read_types(const towpath_host_type_t *given, size_t count,
                               tow_host_type_t *types)
{
    for (size_t i = 0; i < count; i++) {
        if (given[i].rank > TOW_ARRAY_RANK_MAX)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "an array of rank %u; the limit is %u",
                             given[i].rank, TOW_ARRAY_RANK_MAX);
        types[i] =
            (tow_host_type_t){.type = {.struct_size = sizeof(tow_array_type_t),
                                       .type = given[i].type,
                                       .rank = given[i].rank},
                              .bounds = given[i].bounds};
        memcpy(types[i].type.dims, given[i].dims,
               given[i].rank * sizeof(int64_t));
    }
    return TOW_OK;
}

static tow_status_t keep_call(plugin_host_t *host,
                              const towpath_host_call_t *call)
{
    const size_t count = call->argument_count + call->result_count;
    host->argument_count = call->argument_count;
    host->result_count = call->result_count;
    host->time_limit_ms = call->time_limit_ms;
    host->path = tow_strdup(call->path);
    host->symbol = tow_strdup(call->symbol);
    host->types = tow_calloc(count + 1, sizeof(*host->types));
    if (host->path == NULL || host->symbol == NULL || host->types == NULL)
        return exhausted();
    TOW_RETURN_IF_ERROR(
        read_types(call->arguments, call->argument_count, host->types));
    return read_types(call->results, call->result_count,
                      host->types + call->argument_count);
}

static tow_status_t find_slice(PJRT_Client *client,
                               const towpath_host_call_t *call,
                               slice_entry_t **out_slice)
{
    if (call->device_count == 0 || call->device_count > client->device_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a host function on %zu devices; there are %zu",
                         call->device_count, client->device_count);
    PJRT_Device **devices = tow_malloc(call->device_count * sizeof(*devices));
    if (devices == NULL) return exhausted();
    tow_status_t status = TOW_OK;
    for (size_t i = 0; i < call->device_count && status == TOW_OK; i++) {
        devices[i] = tow_plugin_find_device(client, call->devices[i]);
        if (devices[i] == NULL)
            status = TOW_ERROR(TOW_INVALID_ARGUMENT, "there is no device %lld",
                               (long long)call->devices[i]);
    }
    if (status == TOW_OK)
        status = call->device_count == 1
                     ? tow_plugin_device_slice(devices[0], out_slice)
                     : tow_plugin_slice(client, devices, call->device_count,
                                        out_slice);
    tow_free(devices);
    return status;
}

/* Another thread may reopen the slice meanwhile. */
static tow_status_t load(const plugin_host_t *host,
                         tow_function_t **out_function)
{
    PJRT_Client *client = host->slice->devices[0]->client;
    const tow_host_function_options_t options = {
        .struct_size = sizeof(options),
        .path = host->path,
        .symbol = host->symbol,
        .arguments = host->types,
        .argument_count = host->argument_count,
        .results = host->types + host->argument_count,
        .result_count = host->result_count,
        .time_limit_ms = host->time_limit_ms};
    client_enter(client);
    tow_slice_t *slice = host->slice->slice;
    tow_slice_retain_locked(slice);
    client_leave_lazily(client);
    tow_status_t status = tow_host_function_load(slice, &options, out_function);
    tow_slice_release(slice);
    return status;
}

static tow_status_t load_first(plugin_host_t *host)
{
    TOW_RETURN_IF_ERROR(load(host, &host->first));
    tow_function_retain(host->first);
    host->function = host->first;
    host->signature = tow_function_signature(host->first);
    return TOW_OK;
}

tow_status_t tow_plugin_host_load(PJRT_Client *client,
                                  const towpath_host_call_t *call,
                                  plugin_host_t **out_host)
{
    if (call->struct_size < sizeof(*call) || call->path == NULL ||
        call->symbol == NULL)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a host function needs the path of a shared object "
                         "and a symbol");
    plugin_host_t *host = tow_calloc(1, sizeof(*host));
    if (host == NULL) return exhausted();
    tow_status_t status = keep_call(host, call);
    if (status == TOW_OK) status = find_slice(client, call, &host->slice);
    if (status == TOW_OK) status = load_first(host);
    if (status != TOW_OK) {
        tow_plugin_host_destroy(host);
        return status;
    }
    *out_host = host;
    return TOW_OK;
}

/* Locked. If two threads loaded it at once, the first wins. */
static void exchange(plugin_host_t *host, tow_function_t *take_function)
{
    tow_function_t *old = take_function;
    if (tow_function_generation(host->function) !=
        tow_function_generation(take_function)) {
        old = host->function;
        host->function = take_function;
    }
    tow_function_release_locked(old);
}

tow_status_t tow_plugin_host_reload(plugin_host_t *host)
{
    PJRT_Client *client = host->slice->devices[0]->client;
    client_enter(client);
    const bool is_current = tow_function_generation(host->function) ==
                            tow_client_generation(client->tow);
    client_leave_lazily(client);
    if (is_current) return TOW_OK;
    tow_function_t *function;
    TOW_RETURN_IF_ERROR(load(host, &function));
    client_enter(client);
    exchange(host, function);
    client_leave_lazily(client);
    return TOW_OK;
}
