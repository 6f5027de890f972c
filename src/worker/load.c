/* Blobs, and the executables and programs that are made of them.
 *
 * A blob belongs to the one message that names it. */
#include <inttypes.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/host/tuning.h"
#include "worker/worker_impl.h"

typedef struct load {
    tow_compile_t compile;
    tow_host_job_t probe;  /* of a host function */
    tow_host_code_t *code; /* counted; of a host function */
    tow_worker_t *worker;
    tow_list_t in_worker;
    uint64_t executable;
    blob_t code_bytes; /* owned */
    blob_t options;    /* owned */
    bool is_cancelled; /* cancelled: no reply */
} load_t;

/* -- Blobs ----------------------------------------------------------------- */

tow_status_t worker_take_blob(tow_worker_t *worker, uint64_t number,
                              void *take_bytes, size_t size)
{
    const size_t count = tow_map_count(&worker->blobs);
    blob_t *blob = NULL;
    if (count < TOW_WORKER_BLOB_COUNT_MAX &&
        size <= TOW_WORKER_BLOB_BYTES_MAX - worker->blob_bytes)
        blob = tow_malloc(sizeof(*blob));
    if (blob == NULL || !tow_map_put(&worker->blobs, number, blob)) {
        tow_free(blob);
        tow_free(take_bytes);
        return TOW_ERROR(
            TOW_RESOURCE_EXHAUSTED,
            "blob %" PRIu64 " of %zu bytes: %zu blobs of %" PRIu64
            " bytes wait for a message that names them, which is the limit",
            number, size, count, worker->blob_bytes);
    }
    *blob = (blob_t){take_bytes, size};
    worker->blob_bytes += size;
    return TOW_OK;
}

tow_status_t worker_claim_blob(tow_worker_t *worker, uint64_t number,
                               blob_t *out_blob)
{
    blob_t *blob = tow_map_remove(&worker->blobs, number);
    if (blob == NULL)
        return TOW_ERROR(TOW_NOT_FOUND, "no blob %" PRIu64, number);
    *out_blob = *blob;
    TOW_ASSERT(worker->blob_bytes >= blob->size);
    worker->blob_bytes -= blob->size;
    tow_free(blob);
    return TOW_OK;
}

static void discard_blobs(tow_worker_t *worker)
{
    size_t cursor = 0;
    uint64_t number;
    void *value;
    while (tow_map_next(&worker->blobs, &cursor, &number, &value)) {
        tow_map_remove(&worker->blobs, number);
        tow_free(((blob_t *)value)->bytes);
        tow_free(value);
    }
    worker->blob_bytes = 0;
}

/* -- Executables ----------------------------------------------------------- */

static void answer(tow_worker_t *worker, uint64_t executable,
                   tow_status_t take_status)
{
    tow_msg_load_done_t done = TOW_MSG_LOAD_DONE_INIT;
    tow_msg_failure_t failure = tow_failure_of(take_status);
    done.executable = executable;
    if (take_status != TOW_OK) done.failure = &failure;
    worker_send(worker, TOW_MESSAGE_LOAD_DONE, &done.base);
    tow_status_release(take_status);
}

static void free_load(load_t *load)
{
    tow_host_code_release(load->code);
    tow_free(load->code_bytes.bytes);
    tow_free(load->options.bytes);
    tow_free(load);
}

static void loaded(tow_compile_t *compile, tow_status_t take_status,
                   tow_executable_t *take_executable)
{
    load_t *load = TOW_CONTAINER_OF(compile, load_t, compile);
    tow_worker_t *worker = load->worker;
    TOW_ASSERT(worker->load_count > 0);
    tow_list_remove(&load->in_worker);
    worker->load_count--;
    if (load->is_cancelled) {
        tow_executable_release(take_executable);
        tow_status_ignore(take_status, "the load was cancelled");
    } else {
        if (take_status == TOW_OK)
            take_status = tow_dataflow_add_executable(
                worker->dataflow, load->executable, take_executable);
        answer(worker, load->executable, take_status);
    }
    free_load(load);
    worker_settle(worker);
}

static void probed(tow_host_job_t *job, tow_status_t take_status)
{
    load_t *load = TOW_CONTAINER_OF(job, load_t, probe);
    tow_worker_t *worker = load->worker;
    TOW_ASSERT(worker->load_count > 0);
    tow_list_remove(&load->in_worker);
    worker->load_count--;
    if (load->is_cancelled) {
        tow_status_ignore(take_status, "the load was cancelled");
    } else {
        if (take_status == TOW_OK) {
            tow_host_code_retain(load->code);
            take_status = tow_dataflow_add_host(worker->dataflow,
                                                load->executable, load->code);
        }
        answer(worker, load->executable, take_status);
    }
    free_load(load);
    worker_settle(worker);
}

static load_t *find_load(tow_worker_t *worker, uint64_t executable)
{
    const tow_list_t *head = &worker->loads;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        load_t *load = TOW_CONTAINER_OF(at, load_t, in_worker);
        if (load->executable == executable && !load->is_cancelled) return load;
    }
    return NULL;
}

/* Calls a host function's probe now, in a process of its own, so that the first
 * run does not fail. */
static tow_status_t start_probe(tow_worker_t *worker, load_t *load,
                                const tow_msg_load_t *message)
{
    const tow_host_code_options_t options = {
        .take_bytes = load->code_bytes.bytes,
        .size = load->code_bytes.size,
        .signature = {load->options.bytes, load->options.size},
        .devices = message->host_devices,
        .shards = message->host_shards,
        .device_count = message->n_host_devices,
        .device_count_max = worker->options.driver->device_count};
    if (worker->options.host_runner == NULL)
        return TOW_ERROR(TOW_PERMISSION_DENIED,
                         "worker %s does not run host functions, which are "
                         "code of its clients: start it with --host-functions "
                         "if it may",
                         worker->options.name);
    if (message->n_host_devices != message->n_host_shards)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%zu devices for %zu shards",
                         message->n_host_devices, message->n_host_shards);
    load->code_bytes.bytes = NULL;
    TOW_RETURN_IF_ERROR(tow_host_code_create(&options, &load->code));
    load->probe = (tow_host_job_t){.code = load->code,
                                   .is_probe = true,
                                   .time_limit_ns = TOW_HOST_TIME_LIMIT_NS,
                                   .done = probed};
    return tow_host_runner_submit(worker->options.host_runner, &load->probe);
}

static tow_status_t start_load(tow_worker_t *worker, load_t *load)
{
    load->compile = (tow_compile_t){
        .program = {load->code_bytes.bytes, load->code_bytes.size},
        .options = {load->options.bytes, load->options.size},
        .done = loaded};
    return tow_driver_load(worker->options.driver, &load->compile);
}

static tow_status_t start(tow_worker_t *worker, load_t *load,
                          const tow_msg_load_t *message)
{
    if (worker->load_count >= TOW_WORKER_LOAD_COUNT_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "%zu loads are under way, which is the limit",
                         worker->load_count);
    if (find_load(worker, load->executable) != NULL)
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "executable %" PRIu64 " is being loaded",
                         load->executable);
    load->worker = worker;
    TOW_RETURN_IF_ERROR(message->n_host_devices > 0
                            ? start_probe(worker, load, message)
                            : start_load(worker, load));
    tow_list_append(&worker->loads, &load->in_worker);
    worker->load_count++;
    return TOW_OK;
}

tow_status_t worker_load(tow_worker_t *worker, const tow_msg_load_t *message)
{
    load_t *load = tow_calloc(1, sizeof(*load));
    if (load == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    load->executable = message->executable;
    tow_status_t status =
        worker_claim_blob(worker, message->code_blob, &load->code_bytes);
    if (status == TOW_OK && message->options_blob != 0)
        status =
            worker_claim_blob(worker, message->options_blob, &load->options);
    if (status != TOW_OK) {
        free_load(load);
        return status;
    }
    status = start(worker, load, message);
    if (status != TOW_OK) {
        answer(worker, message->executable, status);
        free_load(load);
    }
    return TOW_OK;
}

/* One that failed to load does not exist; that is not an error. */
void worker_unload(tow_worker_t *worker, uint64_t executable)
{
    load_t *load = find_load(worker, executable);
    if (load != NULL) {
        load->is_cancelled = true;
        return;
    }
    tow_status_ignore(
        tow_dataflow_remove_executable(worker->dataflow, executable),
        "it failed to load");
}

/* -- Programs -------------------------------------------------------------- */

/* No reply: a program that the controller lowered and that cannot be unpacked
 * is the controller's mistake. */
tow_status_t worker_load_program(tow_worker_t *worker,
                                 const tow_msg_program_load_t *message)
{
    blob_t blob = {0};
    tow_lowered_t *lowered = NULL;
    TOW_RETURN_IF_ERROR(
        worker_claim_blob(worker, message->lowered_blob, &blob));
    tow_status_t status = tow_lowered_unpack(blob.bytes, blob.size, &lowered);
    tow_free(blob.bytes);
    if (status == TOW_OK)
        status = tow_dataflow_add_program(worker->dataflow, message->program,
                                          lowered);
    return tow_status_annotate(status, "program %" PRIu64, message->program);
}

/* -- Cancelling ------------------------------------------------------------ */

void worker_loads_on_disconnect(tow_worker_t *worker)
{
    const tow_list_t *head = &worker->loads;
    for (tow_list_t *at = head->next; at != head; at = at->next)
        TOW_CONTAINER_OF(at, load_t, in_worker)->is_cancelled = true;
    discard_blobs(worker);
}

void worker_loads_discard(tow_worker_t *worker)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&worker->loads)) != NULL)
        free_load(TOW_CONTAINER_OF(item, load_t, in_worker));
    discard_blobs(worker);
}

/* -- Invariants ------------------------------------------------------------ */

tow_status_t worker_loads_check(const tow_worker_t *worker)
{
    const tow_list_t *head = &worker->loads;
    for (const tow_list_t *at = head->next; at != head; at = at->next)
        TOW_INVARIANT(TOW_CONTAINER_OF(at, load_t, in_worker)->worker ==
                      worker);
    TOW_INVARIANT(tow_list_length(head) == worker->load_count);
    TOW_INVARIANT(worker->load_count <= TOW_WORKER_LOAD_COUNT_MAX);
    uint64_t bytes = 0, number;
    size_t cursor = 0;
    void *value;
    while (tow_map_next(&worker->blobs, &cursor, &number, &value))
        bytes += ((const blob_t *)value)->size;
    TOW_INVARIANT(bytes == worker->blob_bytes);
    TOW_INVARIANT(bytes <= TOW_WORKER_BLOB_BYTES_MAX);
    TOW_INVARIANT(tow_map_count(&worker->blobs) <= TOW_WORKER_BLOB_COUNT_MAX);
    return TOW_OK;
}
