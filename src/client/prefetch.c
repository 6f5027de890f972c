/* Cached values and prefetching. The bytes of small uploads are cached, and
 * small results that the user usually reads are prefetched.
 *
 * A prefetch is a get that is sent with the run, so reading the result costs
 * the latency of the run and no further round trip. A program learns which
 * results to prefetch: each read earns a result credit, each unread prefetch
 * costs some. A prefetch is a get like any other: it waits for the value on
 * the worker, fails as the value does, and completes even if a later run
 * consumes the value. */
#include "client/client_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

/* Waits for a value that is being prefetched. */
struct reader {
    reader_t *next;
    void *bytes;          /* borrowed: the destination */
    completion_t *answer; /* borrowed; or NULL and: */
    callback_t *callback; /* owned */
};

/* -- Cached bytes ---------------------------------------------------------- */

static tow_cached_value_t *make_cached(uint32_t shard, size_t size)
{
    tow_cached_value_t *cached = tow_malloc(sizeof(*cached) + size);
    if (cached == NULL) return NULL;
    atomic_init(&cached->reference_count, 1);
    cached->shard = shard;
    cached->next = NULL;
    cached->size = size;
    return cached;
}

void tow_cached_value_retain(tow_cached_value_t *cached)
{
    atomic_fetch_add_explicit(&cached->reference_count, 1,
                              memory_order_relaxed);
}

void tow_cached_value_release(tow_cached_value_t *cached)
{
    if (cached != NULL && atomic_fetch_sub(&cached->reference_count, 1) == 1)
        tow_free(cached);
}

static void attach(tow_array_t *array, tow_cached_value_t *take_kept)
{
    take_kept->next = array->cached;
    array->cached = take_kept;
}

void tow_array_cache_upload(tow_array_t *array,
                            const tow_upload_options_t *options)
{
    const bool is_one = array->slice->device_count == 1;
    if (options->size > TOW_CLIENT_CACHED_BYTES_MAX ||
        !(is_one || options->replicated))
        return;
    tow_cached_value_t *cached =
        make_cached(is_one ? 0 : TOW_CACHED_EVERY_SHARD, options->size);
    if (cached == NULL) return; /* Without memory it is fetched on demand. */
    if (options->size > 0) memcpy(cached->bytes, options->bytes, options->size);
    attach(array, cached);
}

void tow_array_discard_cached(tow_array_t *array)
{
    while (array->cached != NULL) {
        tow_cached_value_t *cached = array->cached;
        array->cached = cached->next;
        tow_cached_value_release(cached);
    }
}

static tow_cached_value_t *find_cached(const tow_array_t *array, size_t shard)
{
    if (array->value.error != TOW_OK || !tow_slice_is_known(array->slice))
        return NULL;
    for (tow_cached_value_t *cached = array->cached; cached != NULL;
         cached = cached->next)
        if (cached->shard == shard || cached->shard == TOW_CACHED_EVERY_SHARD)
            return cached;
    return NULL;
}

/* -- Learning which results are read --------------------------------------- */

/* The program's result that the array is, if the program still exists; or
 * NULL. */
static program_result_t *result_of(const tow_array_t *array,
                                   tow_program_t **out_program)
{
    if (array->maker == 0) return NULL;
    *out_program = tow_map_find(&array->client->programs, array->maker);
    return *out_program != NULL
               ? &(*out_program)->results.items[array->maker_result]
               : NULL;
}

static bool is_wanted(const program_result_t *result)
{
    return result->credit >= TOW_CLIENT_PREFETCH_CREDIT;
}

static void set_credit(tow_program_t *program, program_result_t *result,
                       uint32_t credit)
{
    const bool was_wanted = is_wanted(result);
    result->credit = credit < TOW_CLIENT_PREFETCH_CREDIT_MAX
                         ? credit
                         : TOW_CLIENT_PREFETCH_CREDIT_MAX;
    if (is_wanted(result) && !was_wanted) program->wanted_count++;
    if (!is_wanted(result) && was_wanted) program->wanted_count--;
}

static void note_read(tow_array_t *array, size_t shard)
{
    if (array->shard_bytes > TOW_CLIENT_CACHED_BYTES_MAX ||
        (array->is_read && shard == 0))
        return;
    tow_program_t *program;
    program_result_t *result = result_of(array, &program);
    if (result == NULL) return;
    if (!array->is_read)
        set_credit(program, result,
                   result->credit + TOW_CLIENT_PREFETCH_CREDIT);
    array->is_read = true;
    if (shard > 0) result->is_read_whole = true;
}

void tow_array_note_unread(tow_array_t *array)
{
    tow_program_t *program;
    program_result_t *result = result_of(array, &program);
    if (result != NULL && result->credit > 0)
        set_credit(program, result, result->credit - 1);
}

tow_cached_value_t *tow_array_cached_value(tow_array_t *array, size_t shard)
{
    tow_cached_value_t *cached = find_cached(array, shard);
    if (cached != NULL) note_read(array, shard);
    return cached;
}

/* -- Prefetching ----------------------------------------------------------- */

static tow_status_t fetch(tow_array_t *array, uint32_t shard)
{
    tow_client_t *client = array->client;
    tow_cached_value_t *cached = make_cached(shard, (size_t)array->shard_bytes);
    if (cached == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    request_t *request;
    tow_status_t status = tow_client_request_get(array, shard, cached->bytes,
                                                 cached->size, &request);
    if (status != TOW_OK) {
        tow_cached_value_release(cached);
        return status;
    }
    request->cached = cached;
    request->array = array;
    request->next_prefetch = array->prefetch;
    array->prefetch = request;
    client->prefetch_count++;
    return TOW_OK;
}

static void fetch_result(tow_array_t *array, const program_result_t *result)
{
    const size_t count = result->is_read_whole ? array->slice->device_count : 1;
    if (array->bounds != 0 ||
        array->shard_bytes > TOW_CLIENT_CACHED_BYTES_MAX ||
        array->client->prefetch_count + count > TOW_CLIENT_PREFETCH_COUNT_MAX)
        return;
    array->is_fetched = true;
    for (size_t i = 0; i < count; i++)
        tow_status_ignore(fetch(array, (uint32_t)i), "it is fetched on demand");
}

void tow_client_results_prefetch(const tow_program_t *program,
                                 tow_array_t *const *results)
{
    for (size_t i = 0; i < program->results.count; i++)
        if (is_wanted(&program->results.items[i]))
            fetch_result(results[i], &program->results.items[i]);
}

static void answer_reader(tow_client_t *client, const reader_t *reader,
                          tow_status_t take_status)
{
    if (reader->callback == NULL) {
        tow_completion_settle(client, reader->answer, take_status);
        return;
    }
    if (!reader->callback->is_patient) tow_client_expect(client, false);
    tow_client_call_later(client, reader->callback, take_status);
}

static void leave_array(request_t *request)
{
    request_t **at = &request->array->prefetch;
    while (*at != request)
        at = &(*at)->next_prefetch;
    *at = request->next_prefetch;
    request->array = NULL;
}

void tow_client_prefetch_done(request_t *request, tow_status_t take_status)
{
    tow_client_t *client = request->client;
    tow_cached_value_t *cached = request->cached;
    tow_array_t *array = request->array;
    request->cached = NULL;
    client->prefetch_count--;
    if (array != NULL) leave_array(request);
    if (array != NULL && take_status == TOW_OK) {
        tow_cached_value_retain(cached);
        attach(array, cached);
    }
    /* Those that are notified may hold the last references to the array. */
    for (reader_t *reader = request->readers; reader != NULL;) {
        reader_t *next = reader->next;
        if (take_status == TOW_OK && cached->size > 0)
            memcpy(reader->bytes, cached->bytes, cached->size);
        answer_reader(client, reader, tow_status_retain(take_status));
        tow_free(reader);
        reader = next;
    }
    request->readers = NULL;
    tow_cached_value_release(cached);
    tow_status_release(take_status);
}

void tow_array_leave_prefetch(tow_array_t *array)
{
    while (array->prefetch != NULL)
        leave_array(array->prefetch);
}

void tow_client_prefetch_discard(request_t *request)
{
    while (request->readers != NULL) {
        reader_t *reader = request->readers;
        request->readers = reader->next;
        tow_client_callback_free(reader->callback);
        tow_free(reader);
    }
    if (request->array != NULL) leave_array(request);
    tow_cached_value_release(request->cached);
    request->cached = NULL;
}

/* -- Reading --------------------------------------------------------------------- */

static bool join(tow_array_t *array, const reader_t *who, size_t shard)
{
    request_t *request = array->prefetch;
    while (request != NULL && request->cached->shard != shard)
        request = request->next_prefetch;
    if (request == NULL) return false;
    reader_t *reader = tow_malloc(sizeof(*reader));
    if (reader == NULL) return false;
    *reader = *who;
    reader->next = request->readers;
    request->readers = reader;
    if (who->callback != NULL && !who->callback->is_patient)
        tow_client_expect(array->client, true);
    return true;
}

bool tow_array_read(tow_array_t *array, size_t shard, void *bytes,
                    completion_t *answer, callback_t *take_callback)
{
    const reader_t reader = {
        .bytes = bytes, .answer = answer, .callback = take_callback};
    note_read(array, shard);
    const tow_cached_value_t *cached = find_cached(array, shard);
    if (cached == NULL) return join(array, &reader, shard);
    if (cached->size > 0) memcpy(bytes, cached->bytes, cached->size);
    if (take_callback != NULL)
        tow_client_call_later(array->client, take_callback, TOW_OK);
    else
        tow_completion_settle(array->client, answer, TOW_OK);
    return true;
}

bool tow_array_is_prefetched(const tow_array_t *array)
{
    return array->value.settled || array->prefetch != NULL;
}
