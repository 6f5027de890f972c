/* Pulls: whole writes that we fetch from a writer's memory (data_reach.h).
 *
 * Small ones at once. Large ones on copiers, threads of the net's own, in chunks
 * that each takes in turn, so that neither the loop stands still nor a close
 * waits for more than a chunk. A pull holds its inbound and its region: both
 * wait for it when they go, and make it give up. What lies in a block that can be
 * mapped (data_view.c) is copied from there, or not at all. */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "env/net/data_impl.h"

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
    tow_data_reach_t reach; /* the inbound's */
    tow_data_view_t *view;  /* used; NULL: none */
    const uint8_t *seen;    /* the bytes in it */
    uint8_t *target;
    uint32_t busy_count; /* parts that have not ended */
    /* Written and read by the loop and all copiers. */
    _Atomic uint64_t next_chunk;
    _Atomic bool is_cancelled;
    _Atomic int error; /* errno of the first that failed */
    pull_part_t parts[TOW_NET_PULL_COPIERS];
};

/* -- Fetching ------------------------------------------------------------- */

/* Chunks end where huge pages of the target do: two threads that touch one for
 * the first time would wait for each other. */
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
        return tow_data_reach_read(&pull->reach, pull->target + at,
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

/* ABORTED: the writer has taken its bytes back. FAILED_PRECONDITION: it may send
 * them another way. */
static tow_code_t verdict(pull_t *pull)
{
    if (atomic_load(&pull->error) != 0) return TOW_FAILED_PRECONDITION;
    if (atomic_load(&pull->is_cancelled)) return TOW_ABORTED;
    return tow_data_reach_holds(&pull->reach, pull->what.word, pull->what.write)
               ? TOW_CODE_OK
               : TOW_ABORTED;
}

/* -- The end -------------------------------------------------------------- */

static void tell(pull_t *pull)
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

/* On the loop. The callbacks in `tell` may close what they like: both are held
 * until we let go. */
static void end_pull(pull_t *pull)
{
    tell(pull);
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
        tow_status_ignore(take_status, "the writer sends them another way");
        atomic_store(&pull->error, EAGAIN);
        atomic_store(&pull->is_cancelled, true);
    }
    if (--pull->busy_count == 0) end_pull(pull);
}

/* -- The beginning -------------------------------------------------------- */

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
    pull->reach = inbound->reach;
    pull->view = view;
    if (view != NULL) pull->seen = tow_data_view_bytes(view, what);
    pull->target = region->bytes + what->place;
    tow_list_append(&inbound->pulls, &pull->in_inbound);
    tow_list_append(&region->pulls, &pull->in_region);
    inbound->pull_count++;
    region->pull_count++;
    if (what->total > TOW_NET_PULL_AT_ONCE_BYTES) {
        start_parts(pull);
    } else {
        fetch(pull);
        end_pull(pull);
    }
    return TOW_CODE_OK;
}

/* The writer's word, looked at after we have the block, says that it is the one
 * with the bytes. */
static bool try_borrow(tow_data_inbound_t *inbound, tow_data_region_t *region,
                       const tow_data_pull_t *what, tow_data_view_t *view)
{
    return view != NULL && tow_data_may_borrow(region, what) &&
           tow_data_reach_holds(&inbound->reach, what->word, what->write) &&
           tow_data_borrow(inbound, region, what, view);
}

static tow_code_t start(tow_data_inbound_t *inbound,
                        const tow_data_pull_t *what)
{
    tow_data_region_t *region = NULL;
    const tow_data_span_t span = {what->region, what->secret, what->place,
                                  what->total};
    if (!tow_data_reach_is_open(&inbound->reach))
        return TOW_FAILED_PRECONDITION;
    const tow_code_t code = tow_data_region_find(inbound->data, &span, &region);
    if (code != TOW_CODE_OK) return code;
    if (inbound->pull_count >= TOW_NET_LANE_PULL_COUNT_MAX)
        return TOW_RESOURCE_EXHAUSTED;
    tow_data_view_t *view = tow_data_view_open(inbound, what);
    if (try_borrow(inbound, region, what, view)) return TOW_CODE_OK;
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

/* -- Giving up ------------------------------------------------------------ */

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
