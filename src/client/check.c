/* Invariants of the client's records. The checks of single records are O(1)
 * and run after changes; tow_client_check covers everything, for tests and
 * simulations. */
#include "base/assert.h"
#include "client/client_impl.h"

static void check_completion(const completion_t *completion)
{
    TOW_ASSERT(completion->settled || completion->error == TOW_OK);
}

void tow_slice_check(const tow_slice_t *slice)
{
    TOW_ASSERT(slice->reference_count > 0 && slice->id != 0);
    TOW_ASSERT(
        slice->generation <=
        atomic_load_explicit(&slice->client->generation, memory_order_relaxed));
    check_completion(&slice->opening);
    TOW_ASSERT((slice->devices != NULL) == (slice->device_count > 0));
    TOW_ASSERT(slice->devices == NULL || slice->opening.settled);
}

void tow_function_check(const tow_function_t *function)
{
    TOW_ASSERT(function->reference_count > 0 && function->slice != NULL);
    check_completion(&function->compiling);
    check_completion(&function->query_ready);
    TOW_ASSERT(function->query == NULL || function->query_ready.settled);
}

void tow_program_check(const tow_program_t *program)
{
    TOW_ASSERT(program->reference_count > 0);
    TOW_ASSERT(program->id == 0 || program->is_finished);
    check_completion(&program->adding);
    TOW_ASSERT(program->wanted_count <= program->results.count);
    TOW_ASSERT(program->donated.count <= program->argument_count);
}

void tow_array_check(const tow_array_t *array)
{
    TOW_ASSERT(array->reference_count > 0 && array->slice != NULL);
    check_completion(&array->value);
    /* It has at most one producer. */
    TOW_ASSERT((array->run != NULL) + (array->upload != NULL) +
                   (array->assembly != NULL) <=
               1);
    TOW_ASSERT(!array->value.settled || array->run == NULL);
    TOW_ASSERT(array->program == NULL || array->id == 0);
}

void tow_client_upload_check(const upload_t *upload)
{
    const tow_client_t *client = upload->client;
    TOW_ASSERT(upload->array == NULL || upload->array->upload == upload);
    TOW_ASSERT(upload->unsent_count <= upload->shard_count);
    TOW_ASSERT(!upload->inlined || upload->writing_count == 0);
    TOW_ASSERT(client->inlined_bytes <= client->upload_bytes);
}

void tow_client_request_check(const request_t *request)
{
    TOW_ASSERT(request->id != 0);
    /* A prefetch has readers; another request one waiter. */
    TOW_ASSERT(request->cached != NULL || request->readers == NULL);
    TOW_ASSERT(request->answer == NULL || request->callback == NULL);
    TOW_ASSERT(request->cached == NULL ||
               (request->kind == REQUEST_GET && request->answer == NULL));
}

static void check_run(const run_record_t *record)
{
    TOW_ASSERT(record->id != 0 && record->program != NULL);
    for (uint32_t i = 0; i < record->result_count; i++)
        TOW_ASSERT(record->results[i] == NULL ||
                   record->results[i]->run == record);
}

static void check_uploads(const tow_client_t *client)
{
    uint64_t bytes = 0, inlined = 0;
    size_t cursor = 0;
    uint64_t id;
    void *value;
    while (tow_map_next(&client->arrays, &cursor, &id, &value)) {
        const upload_t *upload = value;
        tow_client_upload_check(upload);
        TOW_ASSERT(upload->id == id);
        bytes += upload->size;
        if (upload->inlined) inlined += upload->size;
    }
    TOW_ASSERT(bytes == client->upload_bytes);
    TOW_ASSERT(inlined == client->inlined_bytes);
}

static void check_requests(const tow_client_t *client)
{
    size_t prefetches = 0, cursor = 0;
    uint64_t id;
    void *value;
    while (tow_map_next(&client->requests, &cursor, &id, &value)) {
        const request_t *request = value;
        tow_client_request_check(request);
        TOW_ASSERT(request->id == id);
        prefetches += request->cached != NULL;
    }
    TOW_ASSERT(prefetches == client->prefetch_count);
}

void tow_client_check(const tow_client_t *client)
{
    size_t cursor = 0;
    uint64_t id;
    void *value;
    TOW_ASSERT(client->release_firsts.count == client->release_counts.count);
    TOW_ASSERT(!client->is_closed || client->is_closing);
    while (tow_map_next(&client->slices, &cursor, &id, &value))
        tow_slice_check(value);
    for (cursor = 0; tow_map_next(&client->functions, &cursor, &id, &value);)
        tow_function_check(value);
    for (cursor = 0; tow_map_next(&client->programs, &cursor, &id, &value);)
        tow_program_check(value);
    for (cursor = 0; tow_map_next(&client->runs, &cursor, &id, &value);)
        check_run(value);
    check_uploads(client);
    check_requests(client);
}
