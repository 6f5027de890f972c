/* Invariants of the controller's records. The checks of single records are
 * O(1) unless their headers say otherwise, and run after every change. All
 * records are checked against each other in tests and simulations only. */
#include "base/assert.h"
#include "controller/controller_impl.h"
#include "controller/object_impl.h"
#include "controller/slice_impl.h"

/* -- Single records ------------------------------------------------------------ */

void tow_ctl_worker_check(const tow_ctl_worker_t *worker)
{
    TOW_ASSERT(worker->reference_count > 0);
    TOW_ASSERT(worker->name != NULL);
    TOW_ASSERT(worker->release_firsts.count == worker->release_counts.count);
    /* A worker that is connected has joined; closing keeps the entry. */
    TOW_ASSERT(worker->session == NULL || worker->entry != NULL);
}

void tow_ctl_client_check(const tow_ctl_client_t *client)
{
    const tow_controller_t *controller = client->controller;
    TOW_ASSERT(client->number > 0);
    TOW_ASSERT(client->number <= controller->clients.number);
    TOW_ASSERT(client->run_count <= TOW_CLIENT_RUNS_MAX);
    TOW_ASSERT(client->get_count <= TOW_CLIENT_GETS_MAX);
    TOW_ASSERT(client->report_count <= TOW_CLIENT_REPORTS_MAX);
    TOW_ASSERT(client->callback_count <= TOW_CLIENT_CALLBACKS_MAX);
    TOW_ASSERT(client->put_count > 0 || client->put_bytes == 0);
    TOW_ASSERT(client->put_bytes <= TOW_CLIENT_PUT_BYTES_MAX);
    TOW_ASSERT(client->membership_seen <=
               controller->workers.membership_number);
}

void tow_ctl_slice_check(const tow_ctl_slice_t *slice)
{
    TOW_ASSERT(slice->mapping != NULL && slice->island != NULL);
    TOW_ASSERT(slice->device_count > 0);
    TOW_ASSERT(slice->device_count == slice->mapping->device_count);
    TOW_ASSERT(slice->dim_count <= TOW_SLICE_RANK_MAX);
}

void tow_ctl_mapping_check(const tow_ctl_mapping_t *mapping)
{
    uint32_t count = 0;
    TOW_ASSERT(mapping->reference_count > 0);
    TOW_ASSERT(mapping->placement->device_count == mapping->device_count);
    TOW_ASSERT(mapping->part_count <= mapping->device_count);
    for (uint32_t i = 0; i < mapping->part_count; i++) {
        TOW_ASSERT(mapping->parts[i].count > 0);
        count += mapping->parts[i].count;
    }
    TOW_ASSERT(count == mapping->device_count);
    for (uint32_t i = 0; i < mapping->device_count; i++) {
        const tow_ctl_mapping_part_t *part =
            &mapping->parts[mapping->part_of_shard[i]];
        TOW_ASSERT(mapping->part_of_shard[i] < mapping->part_count);
        TOW_ASSERT(mapping->index_in_part[i] < part->count);
        TOW_ASSERT(part->shards[mapping->index_in_part[i]] == i);
    }
}

void tow_ctl_code_check(const tow_ctl_code_t *code)
{
    TOW_ASSERT(code->program != NULL && code->device_count > 0);
    TOW_ASSERT((code->state == CODE_FAILED) == (code->error != TOW_OK));
    TOW_ASSERT(code->state != CODE_READY || code->signature != NULL);
    /* The compiler counts it, and its functions wait. */
    TOW_ASSERT(code->state != CODE_COMPILING || code->reference_count > 0);
    TOW_ASSERT(code->state == CODE_COMPILING ||
               tow_list_is_empty(&code->waiting));
}

void tow_ctl_executable_check(const tow_ctl_executable_t *executable)
{
    uint32_t loading = 0;
    TOW_ASSERT(executable->reference_count > 0);
    TOW_ASSERT(executable->code->compiled != NULL);
    for (uint32_t i = 0; i < executable->mapping->part_count; i++)
        loading += executable->is_loading[i];
    TOW_ASSERT(loading == executable->loading_count);
}

void tow_ctl_program_check(const tow_ctl_program_t *program)
{
    TOW_ASSERT(program->reference_count > 0);
    TOW_ASSERT(program->loading_count <= program->executable_count);
    TOW_ASSERT(program->loading_count > 0 ||
               tow_list_is_empty(&program->waiting));
    TOW_ASSERT(!program->is_refused ||
               (program->error != TOW_OK && program->worker_count == 0));
}

void tow_ctl_put_check(const tow_ctl_put_t *put)
{
    TOW_ASSERT(put->unit.kind == UNIT_PUT);
    TOW_ASSERT(put->object != NULL && put->part_count > 0);
    TOW_ASSERT(put->open_count <= put->mapping->part_count);
    TOW_ASSERT(!put->inlined || put->open_count == 0);
    TOW_ASSERT(put->fetch == NULL ||
               (put->source != NULL && put->fetch->put == put));
    TOW_ASSERT(put->client == NULL || put->client->put_count > 0);
}

void tow_ctl_get_check(const tow_ctl_get_t *get)
{
    TOW_ASSERT(get->object != NULL && get->object->placement != NULL);
    TOW_ASSERT(get->shard < get->object->placement->device_count);
    /* Sent to a worker, or in the list of what makes its object; if it has
     * failed, both. */
    TOW_ASSERT((get->worker == NULL || get->error != TOW_OK) !=
               tow_list_is_empty(&get->node));
    TOW_ASSERT(get->put == NULL ||
               (get->client == NULL && get->put->fetch == get));
    TOW_ASSERT(get->client == NULL || get->client->get_count > 0);
}

/* -- All records --------------------------------------------------------------- */

/* What the records add up to, against what their clients count. */
typedef struct counts {
    size_t runs, puts, gets;
} counts_t;

static void check_workers(const tow_controller_t *controller)
{
    for (const tow_list_t *item = controller->workers.list.next;
         item != &controller->workers.list; item = item->next)
        tow_ctl_worker_check(
            TOW_CONTAINER_OF(item, const tow_ctl_worker_t, node));
}

static counts_t check_clients(const tow_controller_t *controller)
{
    counts_t counts = {0};
    for (const tow_list_t *item = controller->clients.list.next;
         item != &controller->clients.list; item = item->next) {
        const tow_ctl_client_t *client =
            TOW_CONTAINER_OF(item, const tow_ctl_client_t, node);
        tow_ctl_client_check(client);
        counts.runs += client->run_count;
        counts.puts += client->put_count;
        counts.gets += client->get_count;
        size_t cursor = 0;
        uint64_t id;
        void *slice;
        while (tow_map_next(&client->slices, &cursor, &id, &slice))
            tow_ctl_slice_check(slice);
    }
    return counts;
}

static void check_mappings(const tow_controller_t *controller)
{
    for (const tow_list_t *item = controller->mappings.list.next;
         item != &controller->mappings.list; item = item->next)
        tow_ctl_mapping_check(
            TOW_CONTAINER_OF(item, const tow_ctl_mapping_t, node));
}

static void check_codes(const tow_controller_t *controller)
{
    uint64_t bytes = 0;
    for (const tow_list_t *item = controller->codes.list.next;
         item != &controller->codes.list; item = item->next) {
        const tow_ctl_code_t *code =
            TOW_CONTAINER_OF(item, const tow_ctl_code_t, node);
        tow_ctl_code_check(code);
        bytes += tow_ctl_code_bytes(code);
    }
    TOW_ASSERT(bytes == controller->codes.bytes);
}

static void check_programs(const tow_controller_t *controller)
{
    for (const tow_list_t *item = controller->programs.list.next;
         item != &controller->programs.list; item = item->next)
        tow_ctl_program_check(
            TOW_CONTAINER_OF(item, const tow_ctl_program_t, node));
    size_t cursor = 0;
    uint64_t id;
    void *executable;
    while (tow_map_next(&controller->programs.executable_by_id, &cursor, &id,
                        &executable))
        tow_ctl_executable_check(executable);
}

static size_t check_runs(const tow_controller_t *controller)
{
    size_t count = 0, of_clients = 0;
    for (const tow_list_t *item = controller->runs.list.next;
         item != &controller->runs.list; item = item->next) {
        const tow_ctl_run_t *run =
            TOW_CONTAINER_OF(item, const tow_ctl_run_t, node);
        tow_ctl_run_check(run);
        TOW_ASSERT(tow_map_find(&controller->runs.by_key, run->key) == run);
        count++;
        of_clients += run->client != NULL;
    }
    TOW_ASSERT(count == tow_map_count(&controller->runs.by_key));
    return of_clients;
}

/* All device time belongs to a client. */
static void check_time(const tow_controller_t *controller)
{
    const tow_device_time_t *total = &controller->runs.time;
    tow_device_time_t sum = controller->clients.disconnected_time;
    for (const tow_list_t *item = controller->clients.list.next;
         item != &controller->clients.list; item = item->next)
        tow_device_time_merge(
            &sum, &TOW_CONTAINER_OF(item, tow_ctl_client_t, node)->time);
    TOW_ASSERT(sum.busy_ns == total->busy_ns);
    TOW_ASSERT(sum.wait_ns == total->wait_ns);
}

static size_t check_puts(const tow_controller_t *controller)
{
    size_t cursor = 0, copies = 0, of_clients = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&controller->puts.by_key, &cursor, &key, &value)) {
        const tow_ctl_put_t *put = value;
        tow_ctl_put_check(put);
        TOW_ASSERT(put->object->id.value == key);
        copies += put->source != NULL;
        of_clients += put->client != NULL;
    }
    TOW_ASSERT(copies == controller->puts.copy_count);
    return of_clients;
}

static size_t check_gets(const tow_controller_t *controller)
{
    size_t cursor = 0, of_clients = 0;
    uint64_t number;
    void *value;
    while (
        tow_map_next(&controller->gets.by_number, &cursor, &number, &value)) {
        const tow_ctl_get_t *get = value;
        tow_ctl_get_check(get);
        of_clients += get->client != NULL;
    }
    return of_clients;
}

static void check_records(const tow_controller_t *controller)
{
    if (controller->is_closing) return;
    /* Runs that could not be sent are in another list until the turn ends. */
    TOW_ASSERT(tow_list_is_empty(&controller->runs.unsendable));
    check_workers(controller);
    tow_ctl_roster_check(controller);
    const counts_t counts = check_clients(controller);
    check_mappings(controller);
    check_codes(controller);
    check_programs(controller);
    TOW_ASSERT(counts.runs == check_runs(controller));
    check_time(controller);
    TOW_ASSERT(counts.puts == check_puts(controller));
    TOW_ASSERT(counts.gets == check_gets(controller));
    tow_ctl_assemblies_check(controller);
    tow_ctl_spills_check(controller);
    tow_ctl_reports_check(controller);
    tow_ctl_callbacks_check(controller);
}

tow_status_t tow_controller_check_records(const tow_controller_t *controller)
{
    TOW_RETURN_IF_ERROR(tow_sched_check(controller->sched));
    TOW_RETURN_IF_ERROR(tow_resource_check(controller->resource));
    check_records(controller);
    return TOW_OK;
}

tow_status_t tow_controller_check(const tow_controller_t *controller)
{
    TOW_RETURN_IF_ERROR(tow_object_table_check(controller->object_table));
    if (!tow_list_is_empty(&controller->clients.list)) return TOW_OK;
    const tow_controller_totals_t totals = tow_controller_totals(controller);
    /* Gets and spills that are under way hold their objects until they are
     * answered. */
    if (totals.run_count == 0 &&
        tow_map_count(&controller->gets.by_number) == 0 &&
        tow_map_count(&controller->spills.by_key) == 0 &&
        (totals.object_count > 0 || totals.reserved_bytes > 0 ||
         totals.spilled_bytes > 0))
        return TOW_ERROR(TOW_INTERNAL,
                         "there are no clients and no runs, but %llu objects, "
                         "%llu reserved bytes and %llu spilled bytes",
                         (unsigned long long)totals.object_count,
                         (unsigned long long)totals.reserved_bytes,
                         (unsigned long long)totals.spilled_bytes);
    return TOW_OK;
}
