/* The functions that Python calls: finds the client and the objects that
 * Python names by number, and turns statuses into texts. */
#include "pjrt/python_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pjrt/program_impl.h"
#include "pjrt/python_text.h"

/* -- Errors ---------------------------------------------------------------- */

void towpath_text_free(char *text)
{
    tow_free_text(text);
}

/* -- The client and its objects -------------------------------------------- */

static tow_status_t find_client(PJRT_Client **out_client)
{
    TOW_RETURN_IF_ERROR(tow_plugin_check_fork());
    *out_client = atomic_load(&tow_plugin_latest_client);
    if (*out_client != NULL) return TOW_OK;
    return TOW_ERROR(TOW_FAILED_PRECONDITION,
                     "JAX has not opened this platform: call jax.devices() "
                     "with JAX_PLATFORMS=towpath first");
}

/* Locks the client on success. Takes a reference: the program may be used when
 * the lock has been left. */
static tow_status_t enter_program(uint64_t number,
                                  plugin_program_t **out_program)
{
    PJRT_Client *client;
    TOW_RETURN_IF_ERROR(find_client(&client));
    client_enter(client);
    *out_program = tow_map_find(&client->python_programs, number);
    if (*out_program != NULL) {
        (*out_program)->reference_count++;
        return TOW_OK;
    }
    client_leave_lazily(client);
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "there is no program %llu: it was released, or never made",
                     (unsigned long long)number);
}

static void leave_program(plugin_program_t *program)
{
    PJRT_Client *client = program->client;
    const bool is_unused = tow_plugin_program_release(program);
    client_leave_lazily(client);
    if (is_unused) tow_plugin_program_destroy(program);
}

/* Locked. One reference. */
static tow_status_t find_executable(PJRT_Client *client, const void *address,
                                    PJRT_Executable **out_executable)
{
    *out_executable = tow_plugin_executable_find(client, address);
    if (*out_executable != NULL) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "there is no executable at %p: JAX has freed it, or it is "
                     "of another platform",
                     address);
}

/* Locked. 0: no memory. */
static uint64_t enlist(PJRT_Client *client, tow_map_t *map, void *item)
{
    const uint64_t number = ++client->python_number;
    return tow_map_put(map, number, item) ? number : 0;
}

/* -- Slices ---------------------------------------------------------------- */

/* Locked. NULL: JAX does not know it. */
static PJRT_Device *device_of(const PJRT_Client *client, int64_t cluster_id)
{
    for (size_t i = 0; i < client->device_count; i++)
        if (client->devices[i]->cluster_id == cluster_id &&
            !client->devices[i]->is_disconnected)
            return client->devices[i];
    return NULL;
}

/* Locked. */
static tow_status_t read_ids(const PJRT_Client *client,
                             const tow_slice_t *slice, int64_t *out_ids,
                             size_t capacity)
{
    const size_t count = tow_slice_device_count(slice);
    for (size_t i = 0; i < count; i++) {
        tow_device_t info = {.struct_size = sizeof(info)};
        TOW_RETURN_IF_ERROR(tow_slice_device(slice, i, &info));
        const PJRT_Device *device = device_of(client, info.id);
        if (device == NULL)
            return TOW_ERROR(TOW_FAILED_PRECONDITION,
                             "worker %s joined after JAX listed its devices: "
                             "restart this process to use it",
                             info.worker);
        if (i < capacity) out_ids[i] = device->description.id;
    }
    return TOW_OK;
}

static tow_status_t try_ids(PJRT_Client *client, const tow_slice_t *slice,
                            int64_t *out_ids, size_t capacity)
{
    client_enter(client);
    tow_status_t status = read_ids(client, slice, out_ids, capacity);
    client_leave_lazily(client);
    return status;
}

/* A worker that has rejoined has other ids in the cluster. */
static tow_status_t find_ids(PJRT_Client *client, const tow_slice_t *slice,
                             int64_t *out_ids, size_t capacity)
{
    tow_status_t status = try_ids(client, slice, out_ids, capacity);
    if (status == TOW_OK) return TOW_OK;
    tow_status_ignore(status, "it is tried once more");
    TOW_RETURN_IF_ERROR(tow_plugin_list_devices(client));
    return try_ids(client, slice, out_ids, capacity);
}

static tow_status_t keep_slice(PJRT_Client *client, tow_slice_t *slice,
                               uint64_t *out_number)
{
    client_enter(client);
    *out_number = enlist(client, &client->python_slices, slice);
    client_leave_lazily(client);
    return *out_number != 0 ? TOW_OK : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

static tow_status_t open_slice(const tow_slice_options_t *options,
                               uint64_t *out_slice, int64_t *out_ids,
                               size_t capacity, size_t *out_count)
{
    PJRT_Client *client;
    TOW_RETURN_IF_ERROR(find_client(&client));
    tow_slice_t *slice;
    TOW_RETURN_IF_ERROR(tow_slice_open(client->tow, options, &slice));
    *out_count = tow_slice_device_count(slice);
    tow_status_t status = find_ids(client, slice, out_ids, capacity);
    if (status == TOW_OK) status = keep_slice(client, slice, out_slice);
    if (status != TOW_OK) tow_slice_release(slice);
    return status;
}

char *towpath_slice_open(const uint32_t dims[3], const char *kind,
                         const char *island, uint64_t *out_slice,
                         int64_t *out_ids, size_t capacity, size_t *out_count)
{
    const tow_slice_options_t options = {.struct_size = sizeof(options),
                                         .dims = {dims[0], dims[1], dims[2]},
                                         .kind = kind,
                                         .island = island};
    return tow_python_error_text(
        open_slice(&options, out_slice, out_ids, capacity, out_count));
}

static tow_status_t close_slice(uint64_t number)
{
    PJRT_Client *client;
    TOW_RETURN_IF_ERROR(find_client(&client));
    client_enter(client);
    tow_slice_t *slice = tow_map_remove(&client->python_slices, number);
    if (slice != NULL) tow_slice_release_locked(slice);
    client_leave(client);
    if (slice != NULL) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "there is no slice %llu: it was closed, or never opened",
                     (unsigned long long)number);
}

char *towpath_slice_close(uint64_t slice)
{
    return tow_python_error_text(close_slice(slice));
}

/* -- Making programs ------------------------------------------------------- */

static tow_status_t begin(const char *name, uint64_t *out_number)
{
    PJRT_Client *client;
    plugin_program_t *program;
    TOW_RETURN_IF_ERROR(find_client(&client));
    TOW_RETURN_IF_ERROR(tow_plugin_program_create(
        client, name != NULL ? name : "program", &program));
    client_enter(client);
    *out_number = enlist(client, &client->python_programs, program);
    const bool is_unused =
        *out_number == 0 && tow_plugin_program_release(program);
    client_leave_lazily(client);
    if (!is_unused) return TOW_OK;
    tow_plugin_program_destroy(program);
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

char *towpath_program_begin(const char *name, uint64_t *out_program)
{
    return tow_python_error_text(begin(name, out_program));
}

static tow_status_t add_port(uint64_t number, const void *address,
                             uint32_t *out_port)
{
    plugin_program_t *program;
    PJRT_Executable *stub = NULL;
    TOW_RETURN_IF_ERROR(enter_program(number, &program));
    tow_status_t status = find_executable(program->client, address, &stub);
    if (status == TOW_OK)
        status = tow_plugin_program_add_port(program, stub, out_port);
    leave_program(program);
    if (status != TOW_OK) tow_plugin_executable_release(stub);
    return status;
}

char *towpath_program_port(uint64_t program, void *stub, uint32_t *out_port)
{
    return tow_python_error_text(add_port(program, stub, out_port));
}

static tow_status_t add_argument(uint64_t number, uint32_t port,
                                 uint32_t argument, bool is_donated,
                                 uint32_t *out_node)
{
    plugin_program_t *program;
    TOW_RETURN_IF_ERROR(enter_program(number, &program));
    tow_status_t status = tow_plugin_program_add_argument(
        program, port, argument, is_donated, out_node);
    leave_program(program);
    return status;
}

char *towpath_program_argument(uint64_t program, uint32_t port,
                               uint32_t argument, int donated,
                               uint32_t *out_node)
{
    return tow_python_error_text(
        add_argument(program, port, argument, donated != 0, out_node));
}

static tow_status_t add_call(uint64_t number, const void *address,
                             const char *name, const uint32_t (*inputs)[2],
                             size_t count, uint32_t *out_node)
{
    plugin_program_t *program;
    PJRT_Executable *function = NULL;
    TOW_RETURN_IF_ERROR(enter_program(number, &program));
    tow_status_t status = find_executable(program->client, address, &function);
    if (status == TOW_OK)
        status = tow_plugin_program_add_call(program, function, name, inputs,
                                             count, out_node);
    leave_program(program);
    if (status != TOW_OK) tow_plugin_executable_release(function);
    return status;
}

char *towpath_program_call(uint64_t program, void *executable, const char *name,
                           const uint32_t (*inputs)[2], size_t count,
                           uint32_t *out_node)
{
    return tow_python_error_text(
        add_call(program, executable, name, inputs, count, out_node));
}

/* Left while the function is loaded. */
static tow_status_t add_host_call(uint64_t number,
                                  const towpath_host_call_t *call,
                                  const uint32_t (*inputs)[2], size_t count,
                                  uint32_t *out_node)
{
    plugin_program_t *program;
    plugin_host_t *host = NULL;
    TOW_RETURN_IF_ERROR(enter_program(number, &program));
    PJRT_Client *client = program->client;
    client_leave_lazily(client);
    tow_status_t status = tow_plugin_host_load(client, call, &host);
    client_enter(client);
    if (status == TOW_OK)
        status = tow_plugin_program_add_host_call(program, host, call->name,
                                                  inputs, count, out_node);
    leave_program(program);
    if (status != TOW_OK) tow_plugin_host_destroy(host);
    return status;
}

char *towpath_program_host_call(uint64_t program,
                                const towpath_host_call_t *call,
                                const uint32_t (*inputs)[2], size_t count,
                                uint32_t *out_node)
{
    return tow_python_error_text(
        add_host_call(program, call, inputs, count, out_node));
}

static tow_status_t add_result(uint64_t number, uint32_t port, uint32_t result,
                               tow_value_t value)
{
    plugin_program_t *program;
    TOW_RETURN_IF_ERROR(enter_program(number, &program));
    tow_status_t status =
        tow_plugin_program_add_result(program, port, result, value);
    leave_program(program);
    return status;
}

char *towpath_program_result(uint64_t program, uint32_t port, uint32_t result,
                             uint32_t node, uint32_t output)
{
    return tow_python_error_text(
        add_result(program, port, result, (tow_value_t){node, output}));
}

static tow_status_t finish(uint64_t number)
{
    plugin_program_t *program;
    TOW_RETURN_IF_ERROR(enter_program(number, &program));
    PJRT_Client *client = program->client;
    client_leave_lazily(client);
    tow_status_t status = tow_plugin_program_finish(program);
    client_enter(client);
    leave_program(program);
    return status;
}

char *towpath_program_finish(uint64_t program)
{
    return tow_python_error_text(finish(program));
}

/* -- Using programs -------------------------------------------------------- */

static tow_status_t abandon(uint64_t number)
{
    plugin_program_t *program;
    TOW_RETURN_IF_ERROR(enter_program(number, &program));
    tow_plugin_program_abandon(program);
    leave_program(program);
    return TOW_OK;
}

char *towpath_program_abandon(uint64_t program)
{
    return tow_python_error_text(abandon(program));
}

static tow_status_t release(uint64_t number)
{
    plugin_program_t *program;
    TOW_RETURN_IF_ERROR(enter_program(number, &program));
    tow_map_remove(&program->client->python_programs, number);
    tow_plugin_program_detach(program);
    const bool is_unused = tow_plugin_program_release(program);
    TOW_ASSERT(!is_unused); /* This function has a reference, too. */
    leave_program(program);
    return TOW_OK;
}

char *towpath_program_release(uint64_t program)
{
    return tow_python_error_text(release(program));
}

static tow_status_t text(uint64_t number, char **out_text)
{
    plugin_program_t *program;
    TOW_RETURN_IF_ERROR(enter_program(number, &program));
    tow_status_t status = tow_plugin_program_text(program, out_text);
    leave_program(program);
    return status;
}

char *towpath_program_text(uint64_t program, char **out_text)
{
    *out_text = NULL;
    return tow_python_error_text(text(program, out_text));
}

/* -- Executables ----------------------------------------------------------- */

/* Locked. The latest of that name: the map is in order of insertion. */
static void *find_named(const PJRT_Client *client, const char *name)
{
    size_t cursor = 0;
    uint64_t key;
    void *value, *found = NULL;
    while (tow_map_next(&client->executables, &cursor, &key, &value)) {
        const PJRT_Executable *executable = value;
        if (executable->given_name != NULL &&
            strcmp(executable->given_name, name) == 0)
            found = value;
    }
    return found;
}

static tow_status_t executable_named(const char *name, void **out_executable)
{
    PJRT_Client *client;
    TOW_RETURN_IF_ERROR(find_client(&client));
    client_enter(client);
    *out_executable = find_named(client, name);
    client_leave_lazily(client);
    if (*out_executable != NULL) return TOW_OK;
    return TOW_ERROR(TOW_NOT_FOUND,
                     "no executable was compiled with towpath_name=%s, or JAX "
                     "has freed it",
                     name);
}

char *towpath_executable_named(const char *name, void **out_executable)
{
    *out_executable = NULL;
    return tow_python_error_text(executable_named(name, out_executable));
}

/* -- Closing the client ---------------------------------------------------- */

static void close_program(plugin_program_t *program)
{
    client_enter(program->client);
    tow_plugin_program_detach(program);
    const bool is_unused = tow_plugin_program_release(program);
    client_leave_lazily(program->client);
    /* A thread that still uses it uses a client that is being destroyed. */
    if (is_unused) tow_plugin_program_destroy(program);
}

void tow_plugin_python_close(PJRT_Client *client)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&client->python_programs, &cursor, &key, &value))
        close_program(value);
    cursor = 0;
    while (tow_map_next(&client->python_slices, &cursor, &key, &value))
        tow_slice_release(value);
    tow_map_deinit(&client->python_programs);
    tow_map_deinit(&client->python_slices);
}
