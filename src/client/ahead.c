/* Values that are here: what was small when it was uploaded is kept, and small
 * results that the user is used to look at are fetched ahead.
 *
 * A result is fetched ahead by a get that leaves with its run, so looking at it
 * costs the latency of the run and no round trip after it. Which results, a
 * program learns: a read earns a result credit, each one that was fetched for
 * nothing costs some. It is a get like any other: it waits for the value on the
 * worker, fails as the value does, and a later run that consumes the value leaves
 * it the bytes. */
#include "client/client_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

/* Who wants a value that is on its way. */
struct reader {
    reader_t *next;
    void *bytes;          /* lent: where it goes */
    settling_t *answer;   /* lent: who waits; NULL: */
    callback_t *callback; /* owned: who is called */
};

/* -- Kept bytes ------------------------------------------------------------------ */

static tow_kept_t *make_kept(uint32_t shard, size_t size)
{
    tow_kept_t *kept = tow_malloc(sizeof(*kept) + size);
    if (kept == NULL) return NULL;
    atomic_init(&kept->reference_count, 1);
    kept->shard = shard;
    kept->next = NULL;
    kept->size = size;
    return kept;
}

void tow_kept_retain(tow_kept_t *kept)
{
    atomic_fetch_add_explicit(&kept->reference_count, 1, memory_order_relaxed);
}

void tow_kept_release(tow_kept_t *kept)
{
    if (kept != NULL && atomic_fetch_sub(&kept->reference_count, 1) == 1)
        tow_free(kept);
}

static void attach(tow_array_t *array, tow_kept_t *take_kept)
{
    take_kept->next = array->kept;
    array->kept = take_kept;
}

void tow_array_keep(tow_array_t *array, const tow_upload_options_t *options)
{
    const bool is_one = array->slice->device_count == 1;
    if (options->size > TOW_CLIENT_KEPT_BYTES_MAX ||
        !(is_one || options->replicated))
        return;
    tow_kept_t *kept =
        make_kept(is_one ? 0 : TOW_KEPT_EVERY_SHARD, options->size);
    if (kept == NULL) return; /* Then it is fetched when it is wanted. */
    if (options->size > 0) memcpy(kept->bytes, options->bytes, options->size);
    attach(array, kept);
}

void tow_array_forget_kept(tow_array_t *array)
{
    while (array->kept != NULL) {
        tow_kept_t *kept = array->kept;
        array->kept = kept->next;
        tow_kept_release(kept);
    }
}

static tow_kept_t *find_kept(const tow_array_t *array, size_t shard)
{
    if (array->value.error != TOW_OK || !tow_slice_is_known(array->slice))
        return NULL;
    for (tow_kept_t *kept = array->kept; kept != NULL; kept = kept->next)
        if (kept->shard == shard || kept->shard == TOW_KEPT_EVERY_SHARD)
            return kept;
    return NULL;
}

/* -- What is looked at ----------------------------------------------------------- */

/* The result that it is, of a program that there still is; or NULL. */
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
    return result->credit >= TOW_CLIENT_AHEAD_CREDIT;
}

static void set_credit(tow_program_t *program, program_result_t *result,
                       uint32_t credit)
{
    const bool was_wanted = is_wanted(result);
    result->credit = credit < TOW_CLIENT_AHEAD_CREDIT_MAX
                         ? credit
                         : TOW_CLIENT_AHEAD_CREDIT_MAX;
    if (is_wanted(result) && !was_wanted) program->wanted_count++;
    if (!is_wanted(result) && was_wanted) program->wanted_count--;
}

static void note_read(tow_array_t *array, size_t shard)
{
    if (array->shard_bytes > TOW_CLIENT_KEPT_BYTES_MAX ||
        (array->is_read && shard == 0))
        return;
    tow_program_t *program;
    program_result_t *result = result_of(array, &program);
    if (result == NULL) return;
    if (!array->is_read)
        set_credit(program, result, result->credit + TOW_CLIENT_AHEAD_CREDIT);
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

tow_kept_t *tow_array_kept(tow_array_t *array, size_t shard)
{
    tow_kept_t *kept = find_kept(array, shard);
    if (kept != NULL) note_read(array, shard);
    return kept;
}

/* -- Fetching -------------------------------------------------------------------- */

static tow_status_t fetch(tow_array_t *array, uint32_t shard)
{
    tow_client_t *client = array->client;
    tow_kept_t *kept = make_kept(shard, (size_t)array->shard_bytes);
    if (kept == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    request_t *request;
    tow_status_t status =
        tow_request_get(array, shard, kept->bytes, kept->size, &request);
    if (status != TOW_OK) {
        tow_kept_release(kept);
        return status;
    }
    request->kept = kept;
    request->array = array;
    request->next_ahead = array->ahead;
    array->ahead = request;
    client->ahead_count++;
    return TOW_OK;
}

static void fetch_result(tow_array_t *array, const program_result_t *result)
{
    const size_t count = result->is_read_whole ? array->slice->device_count : 1;
    if (array->bounds != 0 || array->shard_bytes > TOW_CLIENT_KEPT_BYTES_MAX ||
        array->client->ahead_count + count > TOW_CLIENT_AHEAD_COUNT_MAX)
        return;
    array->is_fetched = true;
    for (size_t i = 0; i < count; i++)
        tow_status_ignore(fetch(array, (uint32_t)i),
                          "it is fetched when it is wanted");
}

void tow_results_fetch(const tow_program_t *program,
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
        tow_settle(client, reader->answer, take_status);
        return;
    }
    if (!reader->callback->is_patient) tow_client_expect(client, false);
    tow_client_call_later(client, reader->callback, take_status);
}

static void leave_array(request_t *request)
{
    request_t **at = &request->array->ahead;
    while (*at != request)
        at = &(*at)->next_ahead;
    *at = request->next_ahead;
    request->array = NULL;
}

void tow_ahead_done(request_t *request, tow_status_t take_status)
{
    tow_client_t *client = request->client;
    tow_kept_t *kept = request->kept;
    tow_array_t *array = request->array;
    request->kept = NULL;
    client->ahead_count--;
    if (array != NULL) leave_array(request);
    if (array != NULL && take_status == TOW_OK) {
        tow_kept_retain(kept);
        attach(array, kept);
    }
    /* Those who are told may be all who hold the array. */
    for (reader_t *reader = request->readers; reader != NULL;) {
        reader_t *next = reader->next;
        if (take_status == TOW_OK && kept->size > 0)
            memcpy(reader->bytes, kept->bytes, kept->size);
        answer_reader(client, reader, tow_status_retain(take_status));
        tow_free(reader);
        reader = next;
    }
    request->readers = NULL;
    tow_kept_release(kept);
    tow_status_release(take_status);
}

void tow_array_leave_ahead(tow_array_t *array)
{
    while (array->ahead != NULL)
        leave_array(array->ahead);
}

void tow_ahead_abandon(request_t *request)
{
    while (request->readers != NULL) {
        reader_t *reader = request->readers;
        request->readers = reader->next;
        tow_callback_free(reader->callback);
        tow_free(reader);
    }
    if (request->array != NULL) leave_array(request);
    tow_kept_release(request->kept);
    request->kept = NULL;
}

/* -- Reading --------------------------------------------------------------------- */

static bool join(tow_array_t *array, const reader_t *who, size_t shard)
{
    request_t *request = array->ahead;
    while (request != NULL && request->kept->shard != shard)
        request = request->next_ahead;
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
                    settling_t *answer, callback_t *take_callback)
{
    const reader_t reader = {
        .bytes = bytes, .answer = answer, .callback = take_callback};
    note_read(array, shard);
    const tow_kept_t *kept = find_kept(array, shard);
    if (kept == NULL) return join(array, &reader, shard);
    if (kept->size > 0) memcpy(bytes, kept->bytes, kept->size);
    if (take_callback != NULL)
        tow_client_call_later(array->client, take_callback, TOW_OK);
    else
        tow_settle(array->client, answer, TOW_OK);
    return true;
}

bool tow_array_is_near(const tow_array_t *array)
{
    return array->value.settled || array->ahead != NULL;
}
