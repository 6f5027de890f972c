/* The public interface, towpath.h: enters the locked net, calls the state
 * machine, waits, leaves. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "client/client_impl.h"
#include "client/local_cluster.h"
#include "client/name.h"
#include "client/running_cluster.h"
#include "device/host/host.h"
#include "env/net/net.h"
#include "env/tuning.h"
#include "wire/address.h"
#include "wire/security.h"

#define CONNECT_NS (10 * TOW_NS_PER_S)

/* -- Entering and leaving -------------------------------------------------- */

static void enter(tow_client_t *client)
{
    tow_locked_net_enter(client->net);
}

static void leave(tow_client_t *client)
{
    client->lazy_count = 0;
    tow_locked_net_leave(client->net, TOW_LEAVE_FLUSH);
}

/* Consecutive calls are flushed together, unless the cluster may be idle. */
void tow_client_leave_after_call(tow_client_t *client)
{
    if (tow_map_count(&client->runs) <= TOW_CLIENT_EAGER_COUNT ||
        ++client->lazy_count >= TOW_CLIENT_BATCH_COUNT)
        leave(client);
    else
        tow_locked_net_leave(client->net, TOW_LEAVE_LAZY);
}

/* The same for uploads. Small ones are flushed with whatever uses them or
 * waits; large ones at once, so that their bytes can be sent early. */
void tow_client_leave_after_upload(tow_client_t *client, size_t size)
{
    if (size > TOW_INLINE_BYTES_MAX ||
        tow_map_count(&client->arrays) <= TOW_CLIENT_EAGER_COUNT ||
        ++client->lazy_count >= TOW_CLIENT_BATCH_COUNT)
        leave(client);
    else
        tow_locked_net_leave(client->net, TOW_LEAVE_LAZY);
}

static void leave_quietly(tow_client_t *client)
{
    tow_locked_net_leave(client->net, TOW_LEAVE_LAZY);
}

/* A callback that waits would block the thread that runs it. */
static tow_status_t check_may_wait(tow_client_t *client)
{
    if (!tow_locked_net_is_in_callback(client->net)) return TOW_OK;
    return TOW_ERROR(TOW_FAILED_PRECONDITION,
                     "this call waits, which callbacks must not");
}

static tow_status_t wait_completion(tow_client_t *client,
                                    completion_t *completion,
                                    int64_t deadline_ns)
{
    if (!completion->settled) {
        TOW_RETURN_IF_ERROR(check_may_wait(client));
        tow_client_flush_releases(client);
        if (!tow_locked_net_wait(client->net, &completion->settled,
                                 deadline_ns))
            return TOW_ERROR(TOW_DEADLINE_EXCEEDED, "the timeout has expired");
    }
    return tow_status_retain(completion->error);
}

/* The completion is a local of the caller, which gets its error. */
static tow_status_t wait_answer(tow_client_t *client, completion_t *answer)
{
    tow_status_t status = wait_completion(client, answer, TOW_TIME_NEVER);
    tow_status_release(answer->error);
    return status;
}

/* -- Clients ------------------------------------------------------------------- */

static void run_callbacks(void *context)
{
    tow_client_t *client = context;
    tow_list_t list;
    tow_list_init(&list);
    enter(client);
    while (!tow_list_is_empty(&client->callbacks))
        tow_list_append(&list, tow_list_pop_front(&client->callbacks));
    leave_quietly(client);
    tow_client_callbacks_run(&list);
}

/* The cluster to connect to. */
typedef struct target {
    const char *address;
    int64_t spin_ns; /* see tow_net_options_t */
    tow_cluster_monitor_t monitor;
} target_t;

static tow_status_t open_net(const char *name, const tow_security_t *security,
                             int64_t spin_ns, tow_locked_net_t **out_shared)
{
    tow_net_options_t options = {.name = name,
                                 .security = security,
                                 .log = {.level = TOW_LOG_ERROR},
                                 .data_plane = TOW_NET_DATA_UCX,
                                 .spin_ns = spin_ns};
    return tow_locked_net_create(&options, out_shared);
}

/* Replaces characters that peer names do not allow. */
static void plain_name(char out[TOW_PEER_NAME_MAX + 1], const char *name)
{
    size_t length = 0;
    for (; length < TOW_PEER_NAME_MAX && name[length] != '\0'; length++) {
        const char c = name[length];
        const bool is_plain =
            (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
            (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
        out[length] = is_plain ? c : '_';
    }
    out[length] = '\0';
}

/* Makes the name unique: two peers of the same name would look like one that
 * reconnects, and end each other's sessions. */
static void peer_name(char out[TOW_PEER_NAME_MAX + 1], const char *name)
{
    enum {
        NUMBER_SIZE = 17
    }; /* "-" and 16 digits */
    snprintf(out, TOW_PEER_NAME_MAX + 1, "%.*s-%016llx",
             (int)(TOW_PEER_NAME_MAX - NUMBER_SIZE), name,
             (unsigned long long)tow_local_cluster_random());
}

static void free_security(tow_security_t *security)
{
    tow_tls_context_destroy(security->tls);
    tow_free(security);
}

static tow_status_t no_token_error(const char *address)
{
    char folder[PATH_MAX];
    tow_local_cluster_run_folder(folder, sizeof(folder));
    return TOW_ERROR(TOW_UNAUTHENTICATED,
                     "no token for the cluster at %s: copy the token file of "
                     "that cluster (and the cert.pem beside it) to this host, "
                     "and name it in TOW_TOKEN_FILE; there is none in "
                     "~/.config/towpath nor in %s",
                     address, folder);
}

static tow_status_t dial(const tow_client_options_t *options,
                         const target_t *target, tow_client_t **out_client)
{
    char name[TOW_CLIENT_NAME_SIZE], plain[TOW_PEER_NAME_MAX + 1],
        own_name[TOW_PEER_NAME_MAX + 1];
    tow_client_name(options->name, name);
    plain_name(plain, name);
    peer_name(own_name, plain);
    tow_security_t *security = tow_calloc(1, sizeof(*security));
    if (security == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_locked_net_t *net = NULL;
    tow_status_t status =
        tow_local_cluster_security(options->token_file, target->address,
                                   TOW_CREDENTIALS_TO_DIAL, security);
    if (status == TOW_OK && !security->has_token)
        status = no_token_error(target->address);
    if (status == TOW_OK)
        status = open_net(own_name, security, target->spin_ns, &net);
    if (status != TOW_OK) {
        free_security(security);
        return status;
    }
    tow_locked_net_enter(net);
    tow_client_dial_options_t machine = {
        .address = target->address,
        .name = name,
        .connect_timeout_ns =
            options->timeout_ns > 0 ? options->timeout_ns : CONNECT_NS,
        .monitor = target->monitor,
        .net = net};
    tow_client_t *client;
    status = tow_client_dial(tow_locked_net_env(net), &machine, &client);
    tow_locked_net_leave(net, TOW_LEAVE_FLUSH);
    if (status != TOW_OK) {
        tow_locked_net_destroy(net);
        free_security(security);
        return status;
    }
    client->security = security;
    tow_locked_net_set_unlocked_callback(net, run_callbacks, client);
    *out_client = client;
    return TOW_OK;
}

/* Outside the net; no reference is left. */
static void close_client(tow_client_t *client)
{
    tow_locked_net_t *net = client->net;
    enter(client);
    tow_client_shut(client);
    leave(client);
    const bool never = false;
    enter(client);
    while (!client->is_closed || !tow_client_transfers_are_quiet(client))
        tow_locked_net_wait(net, &never,
                            tow_env_now_ns(client->env) + TOW_NS_PER_MS);
    leave(client);
    tow_locked_net_destroy(net);
    tow_local_cluster_stop(client->local);
    free_security(client->security);
    tow_client_free(client);
}

static void *close_elsewhere(void *context)
{
    close_client(context);
    return NULL;
}

/* Locked; unlocks. The last reference may be released in a callback, whose
 * thread cannot wait for itself. */
void tow_client_leave_maybe_last(tow_client_t *client)
{
    const bool is_last = client->reference_count == 0;
    leave_quietly(client);
    if (!is_last) return;
    if (!tow_locked_net_is_in_callback(client->net)) {
        close_client(client);
        return;
    }
    tow_local_cluster_detach_thread(close_elsewhere, client);
}

static tow_status_t open_at(const tow_client_options_t *options,
                            const target_t *target, tow_client_t **out_client)
{
    tow_client_t *client = NULL;
    TOW_RETURN_IF_ERROR(dial(options, target, &client));
    enter(client);
    tow_status_t status =
        wait_completion(client, &client->opening, TOW_TIME_NEVER);
    leave(client);
    if (status != TOW_OK) {
        client->reference_count = 0;
        close_client(client);
        return tow_status_annotate(status, "connecting to %s", target->address);
    }
    *out_client = client;
    return TOW_OK;
}

/* The struct as this version of the library knows it. */
#define COPY_OPTIONS(type, given, copy)                               \
    type copy = {0};                                                  \
    if ((given) != NULL && (given)->struct_size > 0)                  \
    memcpy(&copy, (given),                                            \
           (given)->struct_size < sizeof(copy) ? (given)->struct_size \
                                               : sizeof(copy))

/* A client that names neither a cluster nor the size of a local one uses what
 * this user has started with `tow up`. */
static bool find_running(const tow_client_options_t *options,
                         tow_running_cluster_t *out_cluster)
{
    const char *local = getenv("TOW_LOCAL");
    if (local != NULL || options->worker_count > 0 ||
        options->devices_per_worker > 0 || options->simulated != NULL)
        return false;
    return tow_running_cluster_find(out_cluster);
}

tow_status_t tow_client_open(const tow_client_options_t *options,
                             tow_client_t **out_client)
{
    COPY_OPTIONS(tow_client_options_t, options, own);
    *out_client = NULL;
    if (own.address == NULL) own.address = getenv("TOW_ADDRESS");
    const bool is_unnamed = own.address == NULL;
    if (own.address != NULL && own.address[0] != '\0')
        return open_at(&own, &(target_t){.address = own.address}, out_client);
    tow_running_cluster_t running;
    if (is_unnamed && find_running(&own, &running)) {
        if (own.token_file == NULL) own.token_file = running.token_file;
        return open_at(&own, &(target_t){.address = running.address},
                       out_client);
    }
    tow_local_cluster_t *local;
    TOW_RETURN_IF_ERROR(tow_local_cluster_start(&own, &local));
    own.timeout_ns = own.timeout_ns > 0 ? own.timeout_ns : 60 * TOW_NS_PER_S;
    own.token_file = tow_local_cluster_token_file(local);
    const target_t target = {.address = tow_local_cluster_address(local),
                             .spin_ns = tow_local_cluster_is_joint(local)
                                            ? TOW_LOCAL_JOINT_SPIN_NS
                                            : 0,
                             .monitor = {tow_local_cluster_check, local}};
    tow_client_t *client = NULL;
    tow_status_t status = open_at(&own, &target, &client);
    if (client != NULL)
        client->local = local;
    else
        tow_local_cluster_stop(local);
    *out_client = client;
    return status;
}

const char *tow_client_address(const tow_client_t *client)
{
    return client->address;
}

bool tow_client_is_local(const tow_client_t *client)
{
    return client->local != NULL;
}

void tow_client_retain(tow_client_t *client)
{
    enter(client);
    client->reference_count++;
    leave_quietly(client);
}

void tow_client_release(tow_client_t *client)
{
    if (client == NULL) return;
    enter(client);
    TOW_ASSERT(client->reference_count > 0);
    client->reference_count--;
    tow_client_leave_maybe_last(client);
}

tow_status_t tow_client_status(tow_client_t *client)
{
    enter(client);
    tow_status_t status = tow_status_retain(client->disconnect_cause);
    leave(client);
    return status;
}

static bool is_idle(const tow_client_t *client)
{
    return tow_map_count(&client->runs) == 0 &&
           tow_list_is_empty(&client->uploads) &&
           tow_map_count(&client->requests) == 0;
}

tow_status_t tow_client_wait_idle(tow_client_t *client)
{
    const bool never = false;
    enter(client);
    tow_status_t status = check_may_wait(client);
    while (status == TOW_OK && !is_idle(client))
        tow_locked_net_wait(client->net, &never,
                            tow_env_now_ns(client->env) + TOW_NS_PER_MS);
    if (status == TOW_OK) status = tow_status_retain(client->disconnect_cause);
    leave(client);
    return status;
}

static tow_status_t report(tow_client_t *client, const report_wish_t *wish,
                           char **out_text, size_t *out_size)
{
    completion_t answer = {0};
    *out_text = NULL;
    enter(client);
    tow_status_t status = check_may_wait(client);
    if (status == TOW_OK)
        status =
            tow_client_report_start(client, wish, out_text, out_size, &answer);
    if (status == TOW_OK) status = wait_answer(client, &answer);
    leave(client);
    return status;
}

tow_status_t tow_client_report(tow_client_t *client, char **out_text)
{
    const report_wish_t wish = {.kind = TOW_REPORT_STATUS};
    return report(client, &wish, out_text, NULL);
}

tow_status_t tow_client_trace(tow_client_t *client, char **out_text)
{
    const report_wish_t wish = {.kind = TOW_REPORT_TRACE};
    return report(client, &wish, out_text, NULL);
}

tow_status_t tow_client_trace_spans(tow_client_t *client, uint64_t window_ns,
                                    char **out_text)
{
    const report_wish_t wish = {.kind = TOW_REPORT_SPANS,
                                .window_ns = window_ns};
    return report(client, &wish, out_text, NULL);
}

int64_t tow_client_clock_shift_ns(tow_client_t *client)
{
    int64_t offset_ns = 0, error_ns = 0;
    enter(client);
    const bool is_known =
        client->session != NULL &&
        tow_session_clock_offset(client->session, &offset_ns, &error_ns);
    leave(client);
    return is_known && llabs(offset_ns) > error_ns ? offset_ns : 0;
}

tow_status_t tow_client_memory(tow_client_t *client, char **out_text)
{
    const report_wish_t wish = {.kind = TOW_REPORT_MEMORY};
    return report(client, &wish, out_text, NULL);
}

tow_status_t tow_function_code(tow_function_t *function, char **out_bytes,
                               size_t *out_size)
{
    const report_wish_t wish = {.kind = TOW_REPORT_CODE, .function = function};
    return report(function->slice->client, &wish, out_bytes, out_size);
}

void tow_free_text(char *text)
{
    tow_free(text);
}

/* -- Slices -------------------------------------------------------------------- */

tow_status_t tow_slice_open(tow_client_t *client,
                            const tow_slice_options_t *options,
                            tow_slice_t **out_slice)
{
    COPY_OPTIONS(tow_slice_options_t, options, own);
    *out_slice = NULL;
    tow_slice_t *slice = NULL;
    enter(client);
    tow_status_t status = check_may_wait(client);
    if (status == TOW_OK) status = tow_slice_open_start(client, &own, &slice);
    if (status == TOW_OK)
        status = wait_completion(client, &slice->opening, TOW_TIME_NEVER);
    if (status != TOW_OK && slice != NULL) tow_slice_release_locked(slice);
    leave(client);
    if (status == TOW_OK) *out_slice = slice;
    return status;
}

void tow_slice_retain(tow_slice_t *slice)
{
    enter(slice->client);
    tow_slice_retain_locked(slice);
    leave_quietly(slice->client);
}

void tow_slice_release(tow_slice_t *slice)
{
    if (slice == NULL) return;
    tow_client_t *client = slice->client;
    enter(client);
    tow_slice_release_locked(slice);
    tow_client_leave_maybe_last(client);
}

size_t tow_slice_device_count(const tow_slice_t *slice)
{
    return slice->device_count;
}

tow_status_t tow_slice_device(const tow_slice_t *slice, size_t index,
                              tow_device_t *out_device)
{
    if (index >= slice->device_count)
        return TOW_ERROR(TOW_OUT_OF_RANGE,
                         "there is no device %zu: the slice has %zu", index,
                         slice->device_count);
    const size_t size = out_device->struct_size < sizeof(tow_device_t)
                            ? out_device->struct_size
                            : sizeof(tow_device_t);
    memcpy((char *)out_device + sizeof(size_t),
           (const char *)&slice->devices[index] + sizeof(size_t),
           size > sizeof(size_t) ? size - sizeof(size_t) : 0);
    return TOW_OK;
}

/* -- Functions ----------------------------------------------------------------- */

tow_status_t tow_function_compile(tow_slice_t *slice,
                                  const tow_source_t *source,
                                  tow_function_t **out_function)
{
    COPY_OPTIONS(tow_source_t, source, own);
    tow_client_t *client = slice->client;
    *out_function = NULL;
    tow_function_t *function = NULL;
    enter(client);
    tow_status_t status = check_may_wait(client);
    if (status == TOW_OK)
        status = tow_function_compile_start(slice, &own, &function);
    if (status == TOW_OK)
        status = wait_completion(client, &function->compiling, TOW_TIME_NEVER);
    if (status != TOW_OK && function != NULL)
        tow_function_release_locked(function);
    leave(client);
    if (status == TOW_OK) *out_function = function;
    return status;
}

/* Locked, but unlocks while the user's function runs. */
static tow_status_t wait_with_queries(
    tow_function_t *function, const tow_partition_responder_t *responder)
{
    tow_client_t *client = function->slice->client;
    for (;;) {
        TOW_RETURN_IF_ERROR(
            wait_completion(client, &function->query_ready, TOW_TIME_NEVER));
        if (function->compiling.settled)
            return tow_status_retain(function->compiling.error);
        size_t query_size, size = 0;
        void *query = tow_function_take_partition_query(function, &query_size);
        void *bytes = NULL;
        leave(client);
        tow_status_t status =
            responder->answer(responder->context,
                              (tow_bytes_t){query, query_size}, &bytes, &size);
        tow_free(query);
        enter(client);
        tow_function_partition_reply(function, bytes, size, status);
    }
}

tow_status_t tow_function_compile_with_queries(
    tow_slice_t *slice, const tow_source_t *source,
    const tow_partition_responder_t *responder, tow_function_t **out_function)
{
    tow_client_t *client = slice->client;
    *out_function = NULL;
    tow_function_t *function = NULL;
    enter(client);
    tow_status_t status = check_may_wait(client);
    if (status == TOW_OK)
        status =
            tow_function_compile_start_with_queries(slice, source, &function);
    if (status == TOW_OK) status = wait_with_queries(function, responder);
    if (status != TOW_OK && function != NULL)
        tow_function_release_locked(function);
    leave(client);
    if (status == TOW_OK) *out_function = function;
    return status;
}

void tow_function_retain(tow_function_t *function)
{
    enter(function->slice->client);
    tow_function_retain_locked(function);
    leave_quietly(function->slice->client);
}

void tow_function_release(tow_function_t *function)
{
    if (function == NULL) return;
    tow_client_t *client = function->slice->client;
    enter(client);
    tow_function_release_locked(function);
    tow_client_leave_maybe_last(client);
}

size_t tow_function_argument_count(const tow_function_t *function)
{
    return function->signature.argument_count;
}

size_t tow_function_result_count(const tow_function_t *function)
{
    return function->signature.result_count;
}

static void type_out(const tow_shape_t *shape, tow_array_type_t *out_type)
{
    out_type->type = shape->type;
    out_type->rank = shape->rank;
    memcpy(out_type->dims, shape->dims, sizeof(int64_t) * shape->rank);
}

static tow_status_t shape_in(const tow_array_type_t *type,
                             tow_shape_t *out_shape)
{
    if (type->rank > TOW_RANK_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "an array of rank %u: the maximum is %u", type->rank,
                         TOW_RANK_MAX);
    *out_shape =
        (tow_shape_t){.type = (tow_type_t)type->type, .rank = type->rank};
    memcpy(out_shape->dims, type->dims, sizeof(int64_t) * type->rank);
    return TOW_OK;
}

static tow_status_t type_of(const tow_array_info_t *arrays, size_t count,
                            size_t index, const char *what,
                            tow_array_type_t *out_type)
{
    if (index >= count)
        return TOW_ERROR(TOW_OUT_OF_RANGE, "there is no %s %zu: there are %zu",
                         what, index, count);
    type_out(&arrays[index].shape, out_type);
    return TOW_OK;
}

tow_status_t tow_function_argument_type(const tow_function_t *function,
                                        size_t index,
                                        tow_array_type_t *out_type)
{
    return type_of(function->signature.arguments,
                   function->signature.argument_count, index, "argument",
                   out_type);
}

tow_status_t tow_function_result_type(const tow_function_t *function,
                                      size_t index, tow_array_type_t *out_type)
{
    return type_of(function->signature.results,
                   function->signature.result_count, index, "result", out_type);
}

/* -- Host functions -------------------------------------------------------------- */

static tow_status_t read_file(const char *path, void **out_bytes,
                              size_t *out_size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) return TOW_ERRNO(errno, "opening %s", path);
    tow_status_t status = TOW_OK;
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    void *bytes = size >= 0 ? tow_malloc((size_t)size + 1) : NULL;
    if (size < 0 || fseek(file, 0, SEEK_SET) != 0)
        status = TOW_ERRNO(errno, "reading %s", path);
    else if (bytes == NULL)
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    else if (fread(bytes, 1, (size_t)size, file) != (size_t)size)
        status = TOW_ERROR(TOW_INTERNAL,
                           "reading %s: the file changed meanwhile", path);
    fclose(file);
    if (status != TOW_OK) {
        tow_free(bytes);
        return status;
    }
    *out_bytes = bytes;
    *out_size = (size_t)size;
    return TOW_OK;
}

static tow_status_t host_arrays(const tow_host_type_t *types, size_t count,
                                tow_array_info_t *out_infos)
{
    for (size_t i = 0; i < count; i++) {
        TOW_RETURN_IF_ERROR(shape_in(&types[i].type, &out_infos[i].shape));
        TOW_RETURN_IF_ERROR(
            tow_shape_bytes(&out_infos[i].shape, &out_infos[i].bytes));
        out_infos[i].bounds = types[i].bounds;
    }
    return TOW_OK;
}

static tow_status_t host_signature(const tow_host_function_options_t *options,
                                   size_t shard_count, tow_array_info_t infos[],
                                   tow_signature_t *out_signature)
{
    TOW_RETURN_IF_ERROR(
        host_arrays(options->arguments, options->argument_count, infos));
    TOW_RETURN_IF_ERROR(host_arrays(options->results, options->result_count,
                                    infos + options->argument_count));
    *out_signature =
        (tow_signature_t){.name = options->symbol,
                          .replica_count = 1,
                          .partition_count = shard_count,
                          .argument_count = options->argument_count,
                          .arguments = infos,
                          .result_count = options->result_count,
                          .results = infos + options->argument_count,
                          .is_host = true};
    return TOW_OK;
}

static tow_status_t load_host(tow_slice_t *slice,
                              const tow_host_function_options_t *options,
                              tow_bytes_t bytes, tow_function_t **out_function)
{
    tow_array_info_t infos[TOW_HOST_ARRAY_COUNT_MAX] = {0};
    tow_client_t *client = slice->client;
    tow_function_t *function = NULL;
    tow_signature_t signature;
    if (options->argument_count > TOW_HOST_ARRAY_COUNT_MAX ||
        options->result_count >
            TOW_HOST_ARRAY_COUNT_MAX - options->argument_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a host function has at most %u arrays",
                         TOW_HOST_ARRAY_COUNT_MAX);
    TOW_RETURN_IF_ERROR(
        host_signature(options, slice->device_count, infos, &signature));
    enter(client);
    tow_status_t status = check_may_wait(client);
    if (status == TOW_OK)
        status = tow_host_function_load_start(
            slice, bytes, &signature, options->time_limit_ms, &function);
    if (status == TOW_OK)
        status = wait_completion(client, &function->compiling, TOW_TIME_NEVER);
    if (status != TOW_OK && function != NULL)
        tow_function_release_locked(function);
    leave(client);
    if (status == TOW_OK) *out_function = function;
    return status;
}

tow_status_t tow_host_function_load(tow_slice_t *slice,
                                    const tow_host_function_options_t *options,
                                    tow_function_t **out_function)
{
    COPY_OPTIONS(tow_host_function_options_t, options, own);
    void *bytes = NULL;
    size_t size = 0;
    *out_function = NULL;
    if (own.path == NULL || own.symbol == NULL)
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "a host function needs the path of a shared object and a "
            "symbol");
    TOW_RETURN_IF_ERROR(read_file(own.path, &bytes, &size));
    tow_status_t status =
        load_host(slice, &own, (tow_bytes_t){bytes, size}, out_function);
    tow_free(bytes);
    return tow_status_annotate(status, "host function %s of %s", own.symbol,
                               own.path);
}

/* -- Calls and runs ------------------------------------------------------------ */

tow_status_t tow_client_await_room(tow_client_t *client)
{
    while (TOW_UNLIKELY(!tow_client_has_room(client)) &&
           client->disconnect_cause == TOW_OK) {
        TOW_RETURN_IF_ERROR(check_may_wait(client));
        client->has_room = false;
        tow_locked_net_wait(client->net, &client->has_room, TOW_TIME_NEVER);
    }
    return TOW_OK;
}

tow_status_t tow_client_await_upload(tow_client_t *client, size_t size)
{
    while (TOW_UNLIKELY(!tow_client_has_room_for(client, size)) &&
           client->disconnect_cause == TOW_OK) {
        TOW_RETURN_IF_ERROR(check_may_wait(client));
        client->has_room = false;
        tow_locked_net_wait(client->net, &client->has_room, TOW_TIME_NEVER);
    }
    return TOW_OK;
}

static tow_program_t *program_of(tow_array_t *const *arguments, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (arguments[i] != NULL && arguments[i]->program != NULL)
            return arguments[i]->program;
    return NULL;
}

static tow_status_t note_call(tow_program_t *program, tow_function_t *function,
                              tow_slice_t *slice, tow_array_t *const *arguments,
                              size_t argument_count, tow_array_t **results)
{
    tow_value_t *inputs = tow_calloc(argument_count + 1, sizeof(*inputs));
    if (inputs == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = TOW_OK;
    for (size_t i = 0; i < argument_count && status == TOW_OK; i++) {
        if (arguments[i] == NULL || arguments[i]->program != program)
            status = TOW_ERROR(TOW_INVALID_ARGUMENT,
                               "argument %zu is not a value of the program "
                               "under trace: make it an argument of it",
                               i);
        else
            inputs[i] = arguments[i]->place;
    }
    uint32_t node = 0;
    if (status == TOW_OK)
        status = tow_program_add_call(program, function, slice, inputs,
                                      argument_count, &node);
    tow_free(inputs);
    const tow_signature_t *signature = &function->signature;
    for (size_t i = 0; i < signature->result_count && status == TOW_OK; i++) {
        status = tow_program_placeholder(
            program, slice, &signature->results[i].shape,
            (tow_value_t){.node = node, .output = (uint32_t)i}, &results[i]);
        if (status == TOW_OK) results[i]->bounds = signature->results[i].bounds;
        while (status != TOW_OK && i-- > 0)
            tow_array_release_locked(results[i]);
    }
    return status;
}

static tow_status_t check_call(const tow_function_t *function,
                               const tow_slice_t *slice, size_t result_count)
{
    if (slice->client != function->slice->client)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the function and the slice are of different clients");
    if (slice->device_count != function->slice->device_count)
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "the function is for %zu devices, but the slice has %zu",
            function->slice->device_count, slice->device_count);
    if (result_count != function->signature.result_count)
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "there is room for %zu results, but the function has %zu",
            result_count, function->signature.result_count);
    return TOW_OK;
}

static tow_status_t call(tow_function_t *function, tow_slice_t *slice,
                         tow_array_t *const *arguments, size_t argument_count,
                         tow_array_t **results, size_t result_count)
{
    tow_program_t *program = program_of(arguments, argument_count);
    if (TOW_UNLIKELY(program != NULL))
        return note_call(program, function, slice, arguments, argument_count,
                         results);
    TOW_RETURN_IF_ERROR(tow_client_await_room(slice->client));
    TOW_RETURN_IF_ERROR(tow_function_program(function, slice, &program));
    return tow_program_start(program, arguments, argument_count, results,
                             result_count);
}

tow_status_t tow_function_call(tow_function_t *function, tow_slice_t *slice,
                               tow_array_t *const *arguments,
                               size_t argument_count, tow_array_t **results,
                               size_t result_count)
{
    TOW_RETURN_IF_ERROR(check_call(function, slice, result_count));
    enter(slice->client);
    tow_status_t status =
        call(function, slice, arguments, argument_count, results, result_count);
    tow_client_leave_after_call(slice->client);
    return status;
}

/* -- Arrays -------------------------------------------------------------------- */

tow_status_t tow_array_upload(tow_slice_t *slice,
                              const tow_upload_options_t *options,
                              tow_array_t **out_array)
{
    COPY_OPTIONS(tow_upload_options_t, options, own);
    tow_client_t *client = slice->client;
    *out_array = NULL;
    tow_shape_t shape;
    uint64_t shard_bytes;
    TOW_RETURN_IF_ERROR(shape_in(&own.type, &shape));
    TOW_RETURN_IF_ERROR(tow_shape_bytes(&shape, &shard_bytes));
    completion_t bytes_free = {0};
    completion_t *waiting = own.done_with_bytes == NULL ? &bytes_free : NULL;
    enter(client);
    tow_status_t status = waiting != NULL && own.size > TOW_INLINE_BYTES_MAX
                              ? check_may_wait(client)
                              : TOW_OK;
    if (status == TOW_OK) status = tow_client_await_upload(client, own.size);
    if (status == TOW_OK)
        status = tow_upload_start(slice, &own, &shape, shard_bytes, waiting,
                                  out_array);
    if (status == TOW_OK && waiting != NULL)
        status = wait_answer(client, waiting);
    tow_client_leave_after_upload(client, own.size);
    return status;
}

void tow_array_retain(tow_array_t *array)
{
    enter(array->client);
    tow_array_retain_locked(array);
    leave_quietly(array->client);
}

void tow_array_release(tow_array_t *array)
{
    if (array == NULL) return;
    tow_client_t *client = array->client;
    enter(client);
    tow_array_release_locked(array);
    tow_client_leave_maybe_last(client);
}

tow_status_t tow_array_type(const tow_array_t *array,
                            tow_array_type_t *out_type)
{
    type_out(&array->shape, out_type);
    return TOW_OK;
}

size_t tow_array_shard_count(const tow_array_t *array)
{
    return array->slice->device_count;
}

size_t tow_array_shard_size(const tow_array_t *array)
{
    return array->shard_bytes;
}

tow_status_t tow_array_download(tow_array_t *array, size_t shard, void *bytes,
                                size_t size)
{
    tow_client_t *client = array->client;
    completion_t answer = {0};
    enter(client);
    tow_status_t status = check_may_wait(client);
    if (status == TOW_OK)
        status = tow_download_start(array, shard, bytes, size, &answer, NULL);
    if (status == TOW_OK) status = wait_answer(client, &answer);
    leave_quietly(client);
    return status;
}

tow_status_t tow_array_download_sized(tow_array_t *array, size_t shard,
                                      void *bytes, size_t capacity,
                                      tow_array_type_t *out_type,
                                      size_t *out_size)
{
    tow_client_t *client = array->client;
    completion_t answer = {0};
    tow_shape_t shape = {0};
    uint64_t size = 0;
    enter(client);
    tow_status_t status = check_may_wait(client);
    if (status == TOW_OK)
        status = tow_download_sized_start(array, shard, bytes, capacity, &shape,
                                          &answer);
    if (status == TOW_OK) status = wait_answer(client, &answer);
    leave_quietly(client);
    if (status == TOW_OK) status = tow_shape_bytes(&shape, &size);
    if (status != TOW_OK) return status;
    if (out_type != NULL) type_out(&shape, out_type);
    if (out_size != NULL) *out_size = (size_t)size;
    return TOW_OK;
}

static callback_t *make_callback(void (*done)(void *context,
                                              tow_status_t take_status),
                                 void *context)
{
    callback_t *callback = tow_calloc(1, sizeof(*callback));
    if (callback == NULL) return NULL;
    callback->done = done;
    callback->context = context;
    return callback;
}

tow_status_t tow_array_download_async(
    tow_array_t *array, size_t shard, void *bytes, size_t size,
    void (*done)(void *context, tow_status_t take_status), void *context)
{
    callback_t *callback = make_callback(done, context);
    if (callback == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    enter(array->client);
    tow_status_t status =
        tow_download_start(array, shard, bytes, size, NULL, callback);
    leave(array->client);
    if (status != TOW_OK) tow_free(callback);
    return status;
}

tow_status_t tow_array_transfer(tow_array_t *array,
                                const tow_transfer_options_t *options,
                                tow_array_t **out_array)
{
    tow_slice_t *slice = options->slice != NULL ? options->slice : array->slice;
    tow_sharding_t from, to;
    *out_array = NULL;
    if (slice->client != array->client)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the array and the slice are of different clients");
    TOW_RETURN_IF_ERROR(tow_array_shardings(array, slice, options, &from, &to));
    enter(slice->client);
    tow_status_t status = tow_client_await_room(slice->client);
    if (status == TOW_OK)
        status = tow_array_move(array, slice, &from, &to, out_array);
    tow_client_leave_after_call(slice->client);
    return status;
}

/* Options of older headers are shorter. */
static tow_status_t collective_of(const tow_all_reduce_options_t *options,
                                  tow_collective_t *out)
{
    *out = (tow_collective_t){.kind = TOW_COLLECTIVE_ALL_REDUCE,
                              .reduction = TOW_REDUCE_SUM};
    if (options == NULL) return TOW_OK;
    if (options->mesh_rank > TOW_MESH_AXES_MAX ||
        options->axis_count > TOW_MESH_AXES_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%u axes of a mesh of rank %u; the highest is %u",
                         options->axis_count, options->mesh_rank,
                         TOW_MESH_AXES_MAX);
    if (options->reduction != 0) out->reduction = options->reduction;
    out->mesh_rank = options->mesh_rank;
    out->axis_count = options->axis_count;
    memcpy(out->mesh_dims, options->mesh_dims, sizeof(options->mesh_dims));
    memcpy(out->axes, options->axes, sizeof(options->axes));
    return TOW_OK;
}

static tow_status_t check_arrays(tow_array_t *const *arrays, size_t count,
                                 const tow_collective_t *collective)
{
    if (count == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "there are no arrays to combine");
    for (size_t i = 0; i < count; i++) {
        if (arrays[i]->slice != arrays[0]->slice)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "array %zu is on another slice than the first", i);
        if (arrays[i]->program != arrays[0]->program)
            return TOW_ERROR(
                TOW_INVALID_ARGUMENT,
                "array %zu is not of the same program as the first", i);
        if (!tow_type_is_reducible(arrays[i]->shape.type,
                                   collective->reduction))
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "array %zu: there is no %s of %s", i,
                             tow_reduction_name(collective->reduction),
                             tow_type_name(arrays[i]->shape.type));
    }
    return tow_collective_check(collective, arrays[0]->slice->device_count);
}

tow_status_t tow_arrays_all_reduce(tow_array_t *const *arrays, size_t count,
                                   const tow_all_reduce_options_t *options,
                                   tow_array_t **results)
{
    tow_collective_t collective;
    for (size_t i = 0; i < count; i++)
        results[i] = NULL;
    TOW_RETURN_IF_ERROR(collective_of(options, &collective));
    TOW_RETURN_IF_ERROR(check_arrays(arrays, count, &collective));
    tow_client_t *client = arrays[0]->client;
    enter(client);
    tow_status_t status = tow_client_await_room(client);
    if (status == TOW_OK)
        status = tow_arrays_combine(arrays, count, &collective, results);
    tow_client_leave_after_call(client);
    return status;
}

tow_status_t tow_array_wait(tow_array_t *array, int64_t timeout_ns)
{
    tow_client_t *client = array->client;
    if (array->program != NULL)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a value of a program under trace is never ready");
    enter(client);
    tow_array_retain_locked(array);
    int64_t deadline_ns = timeout_ns < 0
                              ? TOW_TIME_NEVER
                              : tow_env_now_ns(client->env) + timeout_ns;
    tow_status_t status = wait_completion(client, &array->value, deadline_ns);
    if (status == TOW_OK) status = tow_array_outcome(array);
    tow_array_release_locked(array);
    leave_quietly(client);
    return status;
}

bool tow_array_is_ready(tow_array_t *array)
{
    enter(array->client);
    const bool settled = array->value.settled;
    if (settled)
        leave_quietly(array->client);
    else
        leave(array->client);
    return settled;
}

tow_status_t tow_array_on_ready(tow_array_t *array,
                                void (*done)(void *context,
                                             tow_status_t take_status),
                                void *context)
{
    callback_t *callback = make_callback(done, context);
    if (callback == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    enter(array->client);
    tow_array_call_when_ready(array, callback);
    leave(array->client);
    return TOW_OK;
}

void tow_array_cancel_locked(tow_array_t *array)
{
    if (array->run == NULL) return;
    tow_msg_cancel_t cancel = TOW_MSG_CANCEL_INIT;
    cancel.run = array->run->id;
    tow_status_ignore(
        tow_client_send(array->client, TOW_MESSAGE_CANCEL, &cancel.base),
        "without a cluster there is nothing to cancel");
}

void tow_array_cancel(tow_array_t *array)
{
    tow_client_t *client = array->client;
    enter(client);
    tow_array_cancel_locked(array);
    leave(client);
}

/* -- Programs ------------------------------------------------------------------ */

tow_status_t tow_program_create(tow_client_t *client, const char *name,
                                tow_program_t **out_program)
{
    *out_program = NULL;
    enter(client);
    tow_status_t status = tow_program_begin(client, name, out_program);
    leave_quietly(client);
    return status;
}

tow_status_t tow_program_dispatch(tow_program_t *program,
                                  tow_dispatch_t dispatch)
{
    if (dispatch == TOW_DISPATCH_PARALLEL) return TOW_OK;
    enter(program->client);
    tow_status_t status = tow_program_make_sequential(program);
    leave_quietly(program->client);
    return status;
}

void tow_program_retain(tow_program_t *program)
{
    enter(program->client);
    tow_program_retain_locked(program);
    leave_quietly(program->client);
}

void tow_program_release(tow_program_t *program)
{
    if (program == NULL) return;
    tow_client_t *client = program->client;
    enter(client);
    tow_program_release_locked(program);
    tow_client_leave_maybe_last(client);
}

tow_status_t tow_program_argument(tow_program_t *program, tow_slice_t *slice,
                                  const tow_array_type_t *type, bool donated,
                                  tow_array_t **out_array)
{
    tow_shape_t shape;
    TOW_RETURN_IF_ERROR(shape_in(type, &shape));
    tow_value_t place;
    *out_array = NULL;
    enter(program->client);
    tow_status_t status =
        tow_program_add_argument(program, slice, &shape, donated, &place);
    if (status == TOW_OK)
        status =
            tow_program_placeholder(program, slice, &shape, place, out_array);
    leave_quietly(program->client);
    return status;
}

tow_status_t tow_program_result(tow_program_t *program, tow_array_t *array)
{
    if (array->program != program)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the array is not a value of this program");
    enter(program->client);
    tow_status_t status = tow_program_add_result(program, array->place,
                                                 array->slice, &array->shape);
    if (status == TOW_OK)
        program->results.items[program->results.count - 1].bounds =
            array->bounds;
    leave_quietly(program->client);
    return status;
}

tow_status_t tow_program_finish(tow_program_t *program)
{
    tow_client_t *client = program->client;
    enter(client);
    tow_status_t status = check_may_wait(client);
    if (status == TOW_OK) status = tow_program_send(program);
    if (status == TOW_OK)
        status = wait_completion(client, &program->adding, TOW_TIME_NEVER);
    leave(client);
    return status;
}

tow_status_t tow_program_run(tow_program_t *program,
                             tow_array_t *const *arguments,
                             size_t argument_count, tow_array_t **results,
                             size_t result_count)
{
    tow_client_t *client = program->client;
    enter(client);
    tow_status_t status =
        program->id != 0
            ? tow_client_await_room(client)
            : TOW_ERROR(TOW_FAILED_PRECONDITION,
                        "the program is not finished: tow_program_finish");
    if (status == TOW_OK)
        status = tow_program_start(program, arguments, argument_count, results,
                                   result_count);
    tow_client_leave_after_call(client);
    return status;
}
