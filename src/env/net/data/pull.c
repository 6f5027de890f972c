/* Pulls: whole writes that we read out of the writer's memory (cross_read.h).
 *
 * Small ones are read immediately. Large ones are read by copier threads of the
 * net, in chunks, so that neither the loop stalls nor a close waits for more
 * than one chunk. A pull references its inbound and its region: when these
 * close, they cancel the pull and wait for it. Bytes in a mappable block
 * (view.c) are copied from the mapping, or shared without a copy. */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "env/net/data/data_impl.h"

typedef struct pull pull_t;

typedef struct pull_part {
    tow_work_t work;
    pull_t *pull;
} pull_part_t;

struct pull {
    tow_data_inbound_t *inbound; /* lent: waits for us */
    tow_data_region_t *region;   /* lent: waits for us */
    tow_list_t in_inbound;
    tow_list_t in_region;
    tow_data_pull_t what;
    tow_data_cross_read_t cross_read; /* the inbound's */
    tow_data_view_t *view;            /* referenced; NULL: none */
    const uint8_t *seen;              /* its bytes in the view */
    uint8_t *target;
    uint32_t busy_count; /* parts that have not ended */
    /* Accessed by the loop and all copiers. */
    _Atomic uint64_t next_chunk;
    _Atomic bool is_cancelled;
    _Atomic int error; /* errno of the first failure */
    pull_part_t parts[TOW_NET_PULL_COPIERS];
};

/* -- Copying -------------------------------------------------------------- */

/* Chunks end at huge-page boundaries of the target: two threads that fault in
 * the same page would wait for each other. */
static bool next_chunk(pull_t *pull, uint64_t *out_at, uint64_t *out_size)
{
    const uint64_t skew = (uintptr_t)pull->target % TOW_NET_PULL_CHUNK_BYTES;
    const uint64_t end = skew + pull->what.total;
    const uint64_t from = atomic_fetch_add(&pull->next_chunk, 1) *
                          (uint64_t)TOW_NET_PULL_CHUNK_BYTES;
    if (from >= end) return false;
    const uint64_t first = from > skew ? from : skew;
    const uint64_t rest = end - from;
    const uint64_t last =
        rest < TOW_NET_PULL_CHUNK_BYTES ? end : from + TOW_NET_PULL_CHUNK_BYTES;
    *out_at = first - skew;
    *out_size = last - first;
    return true;
}

static int fetch_chunk(const pull_t *pull, uint64_t at, size_t size)
{
    if (pull->view == NULL)
        return tow_data_cross_read_bytes(&pull->cross_read, pull->target + at,
                                         pull->what.bytes + at, size);
    memcpy(pull->target + at, pull->seen + at, size);
    return 0;
}

static void fetch(pull_t *pull)
{
    uint64_t at, size;
    while (!atomic_load(&pull->is_cancelled) && next_chunk(pull, &at, &size)) {
        const int error = fetch_chunk(pull, at, (size_t)size);
        if (error == 0) continue;
        atomic_store(&pull->error, error);
        atomic_store(&pull->is_cancelled, true);
    }
}

/* ABORTED: the writer has withdrawn its bytes. FAILED_PRECONDITION: it may send
 * them as fragments. */
static tow_code_t verdict(pull_t *pull)
{
    if (atomic_load(&pull->error) != 0) return TOW_FAILED_PRECONDITION;
    if (atomic_load(&pull->is_cancelled)) return TOW_ABORTED;
    return tow_data_cross_read_guard_holds(
               &pull->cross_read, pull->what.guard_address, pull->what.write)
               ? TOW_CODE_OK
               : TOW_ABORTED;
}

/* -- Completion ----------------------------------------------------------- */

static void report_result(pull_t *pull)
{
    tow_data_inbound_t *inbound = pull->inbound;
    tow_data_region_t *region = pull->region;
    if (inbound->state != TOW_DATA_INBOUND_OPEN) return;
    const tow_code_t code = region->is_closing ? TOW_NOT_FOUND : verdict(pull);
    if (code != TOW_CODE_OK) {
        tow_data_inbound_answer(inbound, pull->what.write, code);
        return;
    }
    const tow_arrival_t arrival = {.offset = pull->what.place,
                                   .size = pull->what.total,
                                   .tag = pull->what.tag};
    inbound->data->pulled_count++;
    tow_data_inbound_arrived(inbound, region, pull->what.write, &arrival);
}

/* Runs on the loop. Its callbacks may close the inbound and the region: both
 * wait until we release them. */
static void end_pull(pull_t *pull)
{
    report_result(pull);
    tow_list_remove(&pull->in_inbound);
    tow_list_remove(&pull->in_region);
    tow_data_inbound_release(pull->inbound);
    tow_data_region_release(pull->region);
    if (pull->view != NULL) tow_data_view_close(pull->view);
    tow_free(pull);
}

static tow_status_t run_part(tow_work_t *work)
{
    fetch(TOW_CONTAINER_OF(work, pull_part_t, work)->pull);
    return TOW_OK;
}

static void part_done(tow_work_t *work, tow_status_t take_status)
{
    pull_t *pull = TOW_CONTAINER_OF(work, pull_part_t, work)->pull;
    if (take_status != TOW_OK) { /* No thread could be started. */
        tow_status_ignore(take_status, "the writer sends fragments instead");
        atomic_store(&pull->error, EAGAIN);
        atomic_store(&pull->is_cancelled, true);
    }
    if (--pull->busy_count == 0) end_pull(pull);
}

/* -- Starting ------------------------------------------------------------- */

static void start_parts(pull_t *pull)
{
    const uint64_t wanted =
        pull->what.total / TOW_NET_PULL_BYTES_PER_COPIER + 1;
    pull->busy_count = wanted < TOW_NET_PULL_COPIERS
                           ? (uint32_t)wanted
                           : (uint32_t)TOW_NET_PULL_COPIERS;
    for (uint32_t i = 0; i < pull->busy_count; i++) {
        pull->parts[i].pull = pull;
        pull->parts[i].work.run = run_part;
        pull->parts[i].work.done = part_done;
        tow_net_copy_start(pull->inbound->data->net, &pull->parts[i].work);
    }
}

static tow_code_t start_pull(tow_data_inbound_t *inbound,
                             tow_data_region_t *region,
                             const tow_data_pull_t *what, tow_data_view_t *view)
{
    pull_t *pull = tow_calloc(1, sizeof(*pull));
    if (pull == NULL) return TOW_RESOURCE_EXHAUSTED;
    pull->inbound = inbound;
    pull->region = region;
    pull->what = *what;
    pull->cross_read = inbound->cross_read;
    pull->view = view;
    if (view != NULL) pull->seen = tow_data_view_bytes(view, what);
    pull->target = region->bytes + what->place;
    tow_list_append(&inbound->pulls, &pull->in_inbound);
    tow_list_append(&region->pulls, &pull->in_region);
    inbound->pull_count++;
    region->pin_count++;
    tow_data_inbound_check(inbound);
    tow_data_region_check(region);
    if (what->total > TOW_NET_PULL_AT_ONCE_BYTES) {
        start_parts(pull);
    } else {
        fetch(pull);
        end_pull(pull);
    }
    return TOW_CODE_OK;
}

/* The guard, read after the block was mapped, proves that it is the block with
 * the bytes. */
static bool try_share(tow_data_inbound_t *inbound, tow_data_region_t *region,
                      const tow_data_pull_t *what, tow_data_view_t *view)
{
    return view != NULL && tow_data_may_share(region, what) &&
           tow_data_cross_read_guard_holds(&inbound->cross_read,
                                           what->guard_address, what->write) &&
           tow_data_share_begin(inbound, region, what, view);
}

static tow_code_t start(tow_data_inbound_t *inbound,
                        const tow_data_pull_t *what)
{
    tow_data_region_t *region = NULL;
    const tow_data_extent_t span = {what->region, what->secret, what->place,
                                    what->total};
    if (!tow_data_cross_read_is_open(&inbound->cross_read))
        return TOW_FAILED_PRECONDITION;
    const tow_code_t code = tow_data_region_find(inbound->data, &span, &region);
    if (code != TOW_CODE_OK) return code;
    if (inbound->pull_count >= TOW_NET_LANE_PULL_COUNT_MAX)
        return TOW_RESOURCE_EXHAUSTED;
    tow_data_view_t *view = tow_data_view_open(inbound, what);
    if (try_share(inbound, region, what, view)) return TOW_CODE_OK;
    const tow_code_t begun = start_pull(inbound, region, what, view);
    if (begun != TOW_CODE_OK && view != NULL) tow_data_view_close(view);
    return begun;
}

void tow_data_inbound_pull(tow_data_inbound_t *inbound,
                           const tow_data_pull_t *what)
{
    const tow_code_t code = start(inbound, what);
    if (code != TOW_CODE_OK)
        tow_data_inbound_answer(inbound, what->write, code);
}

/* -- Cancelling ----------------------------------------------------------- */

void tow_data_pulls_cancel_of_inbound(tow_data_inbound_t *inbound)
{
    const tow_list_t *head = &inbound->pulls;
    for (tow_list_t *at = head->next; at != head; at = at->next)
        atomic_store(&TOW_CONTAINER_OF(at, pull_t, in_inbound)->is_cancelled,
                     true);
}

void tow_data_pulls_cancel_of_region(tow_data_region_t *region)
{
    const tow_list_t *head = &region->pulls;
    for (tow_list_t *at = head->next; at != head; at = at->next)
        atomic_store(&TOW_CONTAINER_OF(at, pull_t, in_region)->is_cancelled,
                     true);
}
