/* Operations, aborts and timeouts. peer.c handles a single peer. */
#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "collective/multi_host/letters_impl.h"

/* -- Boxes ----------------------------------------------------------------- */

static bool is_same_name(const tow_box_name_t *a, const tow_box_name_t *b)
{
    return a->members == b->members && a->run_id == b->run_id &&
           a->op_id == b->op_id && a->occurrence == b->occurrence &&
           a->to == b->to;
}

static tow_box_t *find_box(tow_letters_t *letters, const tow_box_name_t *name)
{
    for (tow_list_t *item = letters->boxes.next; item != &letters->boxes;
         item = item->next) {
        tow_box_t *box = TOW_CONTAINER_OF(item, tow_box_t, list_);
        if (is_same_name(&box->name, name)) return box;
    }
    return NULL;
}

static bool names_process(const tow_box_t *box, uint32_t process_id)
{
    for (size_t i = 0; i < box->process_count; i++)
        if (box->processes[i] == process_id) return true;
    return false;
}

static void fail_box(tow_box_t *box, tow_status_t cause)
{
    if (box->is_failed) return;
    box->is_failed = true;
    box->handler->failed(box, cause);
}

static void drop(tow_letters_t *letters, tow_letter_t *letter)
{
    letters->stats.dropped_count++;
    tow_letters_release(letter);
}

static bool is_aborted(const tow_letters_t *letters, uint64_t run_id)
{
    for (size_t i = 0; i < TOW_MULTI_HOST_ABORT_COUNT; i++)
        if (letters->aborts[i].is_set && letters->aborts[i].run_id == run_id)
            return true;
    return false;
}

void letters_sort(tow_letters_t *letters, tow_letter_t *letter)
{
    const tow_box_name_t *name = &letter->head->box;
    tow_box_t *box = find_box(letters, name);
    if (is_aborted(letters, name->run_id) || (box != NULL && box->is_failed))
        drop(letters, letter);
    else if (box != NULL)
        box->handler->arrived(box, letter);
    else
        tow_list_append(&letters->unclaimed, &letter->list);
}

typedef bool (*letter_filter_t)(const tow_letter_t *letter,
                                const void *context);

/* Iterates over the letters that wait for a box, and removes those that match.
 * `letter` is the one after the last removed; NULL at the end. */
static tow_letter_t *take_unclaimed(tow_letters_t *letters,
                                    letter_filter_t passes, const void *context)
{
    for (tow_list_t *item = letters->unclaimed.next;
         item != &letters->unclaimed; item = item->next) {
        tow_letter_t *letter = TOW_CONTAINER_OF(item, tow_letter_t, list);
        if (!passes(letter, context)) continue;
        tow_list_remove(item);
        return letter;
    }
    return NULL;
}

static bool is_for_box(const tow_letter_t *letter, const void *box)
{
    return is_same_name(&letter->head->box, &((const tow_box_t *)box)->name);
}

static bool is_of_run(const tow_letter_t *letter, const void *run_id)
{
    return letter->head->box.run_id == *(const uint64_t *)run_id;
}

static bool is_from_peer(const tow_letter_t *letter, const void *peer)
{
    return letter->peer == peer;
}

static void drop_unclaimed(tow_letters_t *letters, letter_filter_t passes,
                           const void *context)
{
    tow_letter_t *letter;
    while ((letter = take_unclaimed(letters, passes, context)) != NULL)
        drop(letters, letter);
}

static tow_letters_peer_t *find_peer(const tow_letters_t *letters,
                                     uint32_t process_id)
{
    return tow_map_find(&letters->peers, (uint64_t)process_id + 1);
}

/* The reason why this process cannot send any more, or TOW_OK. */
static tow_status_t why_not(tow_letters_t *letters, uint32_t process_id)
{
    const tow_letters_peer_t *peer = find_peer(letters, process_id);
    if (peer != NULL) return tow_status_retain(peer->cause);
    for (size_t i = 0; i < TOW_MULTI_HOST_DEAD_COUNT; i++)
        if (letters->dead[i].cause != TOW_OK &&
            letters->dead[i].process_id == process_id)
            return tow_status_retain(letters->dead[i].cause);
    return TOW_OK;
}

static void tick(tow_timer_t *timer);

tow_status_t tow_letters_open_box(tow_letters_t *letters, tow_box_t *box)
{
    TOW_ASSERT(box->partner_count <= box->process_count);
    if (find_box(letters, &box->name) != NULL)
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "device %" PRId64 " is in operation %" PRIu64
                         " (occurrence %" PRIu64 ") of run %" PRIu64 " already",
                         box->name.to, box->name.op_id, box->name.occurrence,
                         box->name.run_id);
    TOW_RETURN_IF_ERROR(tow_letters_abort_of(letters, box->name.run_id));
    for (size_t i = 0; i < box->process_count; i++) {
        tow_letters_peer_t *peer = find_peer(letters, box->processes[i]);
        if (peer != NULL && i < box->partner_count) peer_wake(peer);
        TOW_RETURN_IF_ERROR(why_not(letters, box->processes[i]));
    }
    box->opened_ns = tow_env_now_ns(letters->env);
    box->is_failed = false;
    tow_list_append(&letters->boxes, &box->list_);
    if (!tow_timer_is_armed(&letters->tick))
        tow_env_timer_start(letters->env, &letters->tick,
                            box->opened_ns + TOW_MULTI_HOST_PROBE_NS);
    tow_letter_t *letter;
    while ((letter = take_unclaimed(letters, is_for_box, box)) != NULL)
        box->handler->arrived(box, letter);
    return TOW_OK;
}

void letters_return(tow_letters_t *letters, tow_envelope_t *envelope)
{
    letters->stats.envelope_count--;
    envelope->returned(envelope);
}

/* Queued envelopes: those of a failed box are returned, the others are still
 * sent, without a box. */
static void part_with(tow_letters_t *letters, tow_box_t *box,
                      tow_list_t *waiting)
{
    for (tow_list_t *item = waiting->next, *next; item != waiting;
         item = next) {
        next = item->next;
        tow_envelope_t *envelope = TOW_CONTAINER_OF(item, tow_envelope_t, list);
        if (envelope->box != box) continue;
        envelope->box = NULL;
        if (!box->is_failed) continue;
        tow_list_remove(item);
        letters_return(letters, envelope);
    }
}

/* Those in flight are returned on completion. */
static void part_with_flying(tow_box_t *box, tow_list_t *flying)
{
    for (tow_list_t *item = flying->next; item != flying; item = item->next) {
        tow_envelope_t *envelope = TOW_CONTAINER_OF(item, tow_envelope_t, list);
        if (envelope->box == box) envelope->box = NULL;
    }
}

void tow_letters_close_box(tow_letters_t *letters, tow_box_t *box)
{
    tow_list_remove(&box->list_);
    part_with(letters, box, &letters->unrouted);
    const size_t stream = (size_t)(box->name.to % TOW_XLA_PROCESS_STRIDE);
    for (size_t i = 0; i < box->partner_count; i++) {
        tow_letters_peer_t *peer = find_peer(letters, box->processes[i]);
        if (peer == NULL || !peer->is_awake) continue;
        part_with(letters, box, &peer->outs[stream].waiting);
        part_with_flying(box, &peer->flying);
    }
}

void tow_letters_send(tow_letters_t *letters, tow_box_t *box,
                      tow_envelope_t *envelope)
{
    TOW_ASSERT(envelope->head.size <= TOW_LETTER_BYTES_MAX);
    const int64_t to = envelope->head.box.to;
    envelope->head.box = box->name;
    envelope->head.box.to = to;
    envelope->head.from = box->name.to;
    envelope->head.kind = LETTER_OF_BOX;
    envelope->box = box;
    tow_list_init(&envelope->list);
    letters->stats.envelope_count++;
    tow_letters_peer_t *peer = find_peer(letters, envelope->process);
    if (peer != NULL && peer->is_awake && !peer->is_failed && !box->is_failed)
        peer_send(peer, envelope);
    else
        tow_list_append(&letters->unrouted, &envelope->list);
}

/* -- Peers ----------------------------------------------------------------- */

static tow_status_t check_peer(const tow_letters_t *letters,
                               const tow_multi_host_peer_t *peer)
{
    if (peer->process_id == letters->options.process_id)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "process %" PRIu32 " is our own",
                         peer->process_id);
    if (peer->process_id >= TOW_XLA_PROCESS_COUNT_MAX ||
        peer->device_count == 0 ||
        peer->device_count > TOW_XLA_DEVICE_COUNT_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "process %" PRIu32 " with %" PRIu32
                         " devices: at most %d with 1 to %d each",
                         peer->process_id, peer->device_count,
                         TOW_XLA_PROCESS_COUNT_MAX, TOW_XLA_DEVICE_COUNT_MAX);
    if (find_peer(letters, peer->process_id) != NULL)
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "process %" PRIu32 " is a peer already",
                         peer->process_id);
    if (tow_map_count(&letters->peers) >= TOW_MULTI_HOST_PEER_COUNT_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "%d processes are peers already",
                         TOW_MULTI_HOST_PEER_COUNT_MAX);
    return TOW_OK;
}

/* Boxes were opened before this process was added. */
static void route(tow_letters_t *letters, tow_letters_peer_t *peer)
{
    for (tow_list_t *item = letters->boxes.next; item != &letters->boxes;
         item = item->next) {
        tow_box_t *box = TOW_CONTAINER_OF(item, tow_box_t, list_);
        for (size_t i = 0; i < box->partner_count; i++)
            if (box->processes[i] == peer->process_id) peer_wake(peer);
    }
    for (tow_list_t *item = letters->unrouted.next, *next;
         item != &letters->unrouted && peer->is_awake; item = next) {
        next = item->next;
        tow_envelope_t *envelope = TOW_CONTAINER_OF(item, tow_envelope_t, list);
        if (envelope->process != peer->process_id ||
            (envelope->box != NULL && envelope->box->is_failed))
            continue;
        tow_list_remove(item);
        peer_send(peer, envelope);
    }
}

static void forget_death(tow_letters_t *letters, uint32_t process_id)
{
    for (size_t i = 0; i < TOW_MULTI_HOST_DEAD_COUNT; i++) {
        dead_process_t *dead = &letters->dead[i];
        if (dead->cause == TOW_OK || dead->process_id != process_id) continue;
        tow_status_ignore(dead->cause, "it is there again");
        dead->cause = TOW_OK;
    }
}

tow_status_t tow_letters_add_peer(tow_letters_t *letters,
                                  const tow_multi_host_peer_t *about)
{
    TOW_RETURN_IF_ERROR(check_peer(letters, about));
    tow_letters_peer_t *peer = NULL;
    TOW_RETURN_IF_ERROR(peer_create(letters, about, &peer));
    if (!tow_map_put(&letters->peers, (uint64_t)about->process_id + 1, peer)) {
        tow_free(peer->address);
        tow_free(peer);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    letters->stats.peer_count++;
    forget_death(letters, about->process_id);
    route(letters, peer);
    return TOW_OK;
}

static void remember_death(tow_letters_t *letters, uint32_t process_id,
                           tow_status_t take_cause)
{
    dead_process_t *dead =
        &letters->dead[letters->dead_count++ % TOW_MULTI_HOST_DEAD_COUNT];
    tow_status_ignore(dead->cause, "so many have died since");
    *dead = (dead_process_t){process_id, take_cause};
}

static void fail_boxes_with(tow_letters_t *letters, uint32_t process_id,
                            tow_status_t cause)
{
    for (tow_list_t *item = letters->boxes.next; item != &letters->boxes;
         item = item->next) {
        tow_box_t *box = TOW_CONTAINER_OF(item, tow_box_t, list_);
        if (names_process(box, process_id)) fail_box(box, cause);
    }
}

void letters_peer_failed(tow_letters_peer_t *peer)
{
    tow_letters_t *letters = peer->letters;
    if (letters->is_closing) return;
    drop_unclaimed(letters, is_from_peer, peer);
    fail_boxes_with(letters, peer->process_id, peer->cause);
    if (letters->options.peer_failed != NULL)
        letters->options.peer_failed(letters->options.context, peer->process_id,
                                     peer->cause);
}

void tow_letters_remove_peer(tow_letters_t *letters, uint32_t process_id,
                             tow_status_t cause)
{
    TOW_ASSERT(cause != TOW_OK);
    tow_letters_peer_t *peer = find_peer(letters, process_id);
    if (peer == NULL) return;
    tow_status_t named =
        TOW_ERROR(tow_status_code(cause), "process %" PRIu32 " is gone: %s",
                  process_id, tow_status_message(cause));
    tow_map_remove(&letters->peers, (uint64_t)process_id + 1);
    drop_unclaimed(letters, is_from_peer, peer);
    fail_boxes_with(letters, process_id, named);
    remember_death(letters, process_id, named);
    peer_retire(peer);
}

static void door_arrived(void *context, tow_region_t *region,
                         const tow_arrival_t *arrival)
{
    (void)region;
    tow_letters_t *letters = context;
    hello_t hello;
    if (letters->is_closing || arrival->size != sizeof(hello)) return;
    memcpy(&hello, letters->door_bytes + arrival->offset, sizeof(hello));
    /* Two peers that share an entry may have overwritten each other: both
     * repeat. */
    if (hello.magic != HELLO_MAGIC || hello.check != hello_check(&hello))
        return;
    tow_letters_peer_t *peer = find_peer(letters, hello.process_id);
    if (peer != NULL) peer_hear_hello(peer, &hello);
}

/* -- Aborts ---------------------------------------------------------------- */

static abort_note_t *remember_abort(tow_letters_t *letters, uint64_t run_id,
                                    tow_code_t code, const char *reason)
{
    abort_note_t *note =
        &letters->aborts[letters->abort_count++ % TOW_MULTI_HOST_ABORT_COUNT];
    *note = (abort_note_t){.is_set = true, .run_id = run_id, .code = code};
    snprintf(note->reason, sizeof(note->reason), "%s", reason);
    return note;
}

static void fail_run(tow_letters_t *letters, const abort_note_t *note)
{
    drop_unclaimed(letters, is_of_run, &note->run_id);
    tow_status_t cause = TOW_ERROR(note->code, "%s", note->reason);
    for (tow_list_t *item = letters->boxes.next; item != &letters->boxes;
         item = item->next) {
        tow_box_t *box = TOW_CONTAINER_OF(item, tow_box_t, list_);
        if (box->name.run_id == note->run_id) fail_box(box, cause);
    }
    tow_status_ignore(cause, "its boxes have been told");
}

void tow_letters_abort(tow_letters_t *letters, uint64_t run_id, tow_code_t code,
                       const char *reason)
{
    TOW_ASSERT(code != TOW_CODE_OK);
    if (is_aborted(letters, run_id)) return;
    abort_note_t *note = remember_abort(letters, run_id, code, reason);
    note->is_ours = true;
    fail_run(letters, note);
    size_t cursor = 0;
    uint64_t key;
    void *peer;
    while (tow_map_next(&letters->peers, &cursor, &key, &peer))
        peer_tell_abort(peer, note);
}

void letters_tell_aborts(tow_letters_peer_t *peer)
{
    tow_letters_t *letters = peer->letters;
    for (size_t i = 0; i < TOW_MULTI_HOST_ABORT_COUNT; i++)
        if (letters->aborts[i].is_set && letters->aborts[i].is_ours)
            peer_tell_abort(peer, &letters->aborts[i]);
}

void letters_hear_abort(tow_letters_t *letters, const tow_letter_t *letter)
{
    const tow_letter_head_t *head = letter->head;
    const uint64_t run_id = head->box.run_id;
    if (is_aborted(letters, run_id)) return;
    tow_code_t code = (tow_code_t)head->box.op_id;
    if (head->box.op_id == TOW_CODE_OK || head->box.op_id > TOW_UNAUTHENTICATED)
        code = TOW_UNKNOWN;
    char reason[TOW_MULTI_HOST_REASON_BYTES];
    snprintf(reason, sizeof(reason), "%.*s", (int)head->size,
             (const char *)letter->bytes);
    fail_run(letters, remember_abort(letters, run_id, code, reason));
    if (letters->options.aborted != NULL)
        letters->options.aborted(letters->options.context, run_id, code,
                                 reason);
}

tow_status_t tow_letters_abort_of(const tow_letters_t *letters, uint64_t run_id)
{
    for (size_t i = 0; i < TOW_MULTI_HOST_ABORT_COUNT; i++) {
        const abort_note_t *note = &letters->aborts[i];
        if (note->is_set && note->run_id == run_id)
            return TOW_ERROR(note->code, "%s", note->reason);
    }
    return TOW_OK;
}

/* -- Timeouts -------------------------------------------------------------- */

static int64_t patience_of(const tow_letters_t *letters,
                           const tow_letters_peer_t *peer)
{
    const int64_t patience_ns = letters->options.patience_ns;
    if (peer != NULL && peer->their_session != 0) return patience_ns;
    return patience_ns > TOW_MULTI_HOST_ABSENCE_NS ? patience_ns
                                                   : TOW_MULTI_HOST_ABSENCE_NS;
}

static tow_status_t silence(const tow_box_t *box, uint32_t process_id,
                            const tow_letters_peer_t *peer, int64_t silent_ns)
{
    const char *what = "has given no sign of life";
    if (peer == NULL)
        what = "is unknown here, has not been added";
    else if (peer->is_here || peer->their_session == 0)
        what = "has not answered";
    return TOW_ERROR(TOW_UNAVAILABLE,
                     "process %" PRIu32 " %s for %.1f s, inside a collective "
                     "of gang run %" PRIu64,
                     process_id, what, (double)silent_ns * 1e-9,
                     box->name.run_id);
}

/* Whether the i-th process of `box` has timed out. */
static void check_patience(tow_letters_t *letters, tow_box_t *box, size_t i)
{
    const int64_t now_ns = tow_env_now_ns(letters->env);
    tow_letters_peer_t *peer = find_peer(letters, box->processes[i]);
    if (peer != NULL && (peer->is_here || i >= box->partner_count)) return;
    int64_t since_ns = box->opened_ns;
    if (letters->awake_ns > since_ns) since_ns = letters->awake_ns;
    if (peer != NULL && peer->heard_ns > since_ns) since_ns = peer->heard_ns;
    if (now_ns - since_ns < patience_of(letters, peer)) {
        if (peer != NULL) peer_probe(peer);
        return;
    }
    tow_status_t cause =
        silence(box, box->processes[i], peer, now_ns - since_ns);
    fail_box(box, cause);
    if (peer != NULL && letters->options.peer_failed != NULL)
        letters->options.peer_failed(letters->options.context, peer->process_id,
                                     cause);
    tow_status_ignore(cause, "the box has been told");
}

static void tick(tow_timer_t *timer)
{
    tow_letters_t *letters = TOW_CONTAINER_OF(timer, tow_letters_t, tick);
    const int64_t now_ns = tow_env_now_ns(letters->env);
    if (tow_list_is_empty(&letters->boxes)) return;
    /* We were frozen or busy: messages of the peers may still be unread. */
    if (now_ns - timer->deadline_ns > TOW_MULTI_HOST_PROBE_NS)
        letters->awake_ns = now_ns;
    tow_env_timer_start(letters->env, timer, now_ns + TOW_MULTI_HOST_PROBE_NS);
    for (tow_list_t *item = letters->boxes.next; item != &letters->boxes;
         item = item->next) {
        tow_box_t *box = TOW_CONTAINER_OF(item, tow_box_t, list_);
        for (size_t i = 0; i < box->process_count && !box->is_failed; i++)
            check_patience(letters, box, i);
    }
}

/* -- Opening and closing --------------------------------------------------- */

static void free_letters(tow_letters_t *letters)
{
    for (size_t i = 0; i < TOW_MULTI_HOST_DEAD_COUNT; i++)
        tow_status_ignore(letters->dead[i].cause, "we end");
    tow_map_deinit(&letters->peers);
    tow_free(letters->door_bytes);
    tow_free(letters);
}

static bool is_idle(const tow_letters_peer_t *peer)
{
    return peer->lane == NULL && peer->region == NULL &&
           peer->writing_count == 0 && peer->held_count == 0;
}

/* Frees what has ended; from the loop, so that no caller still uses it. */
static void reap(tow_post_t *post)
{
    tow_letters_t *letters = TOW_CONTAINER_OF(post, tow_letters_t, end_post);
    letters->end_is_posted = false;
    for (tow_list_t *item = letters->retired.next, *next;
         item != &letters->retired; item = next) {
        next = item->next;
        tow_letters_peer_t *peer =
            TOW_CONTAINER_OF(item, tow_letters_peer_t, list);
        if (!is_idle(peer)) continue;
        tow_list_remove(item);
        letters->stats.peer_count--;
        peer_free(peer);
    }
    if (!letters->is_closing || !letters->door_is_closed ||
        !tow_list_is_empty(&letters->retired))
        return;
    const tow_closed_t closed = letters->closed;
    free_letters(letters);
    if (closed.run != NULL) closed.run(closed.context);
}

void letters_peer_gone(tow_letters_t *letters)
{
    if (letters->end_is_posted) return;
    letters->end_is_posted = true;
    tow_env_post(letters->env, &letters->end_post);
}

static tow_status_t open_door(tow_letters_t *letters)
{
    const size_t size = TOW_MULTI_HOST_DOOR_COUNT * sizeof(hello_t);
    letters->door_bytes = tow_calloc(1, size);
    if (letters->door_bytes == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return tow_env_region_open(
        letters->env,
        &(tow_region_options_t){.bytes = letters->door_bytes,
                                .size = size,
                                .arrived = door_arrived,
                                .context = letters},
        &letters->door);
}

static tow_status_t check_options(const tow_letters_options_t *options)
{
    if (!tow_env_has_lanes(options->env))
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "collectives across hosts need a data plane, and "
                         "this process has none");
    if (options->process_id >= TOW_XLA_PROCESS_COUNT_MAX ||
        options->device_count == 0 ||
        options->device_count > TOW_XLA_DEVICE_COUNT_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "process %" PRIu32 " with %" PRIu32 " devices",
                         options->process_id, options->device_count);
    return TOW_OK;
}

tow_status_t tow_letters_open(const tow_letters_options_t *options,
                              tow_letters_t **out_letters)
{
    *out_letters = NULL;
    TOW_RETURN_IF_ERROR(check_options(options));
    tow_letters_t *letters = tow_calloc(1, sizeof(*letters));
    if (letters == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    letters->options = *options;
    letters->env = options->env;
    if (letters->options.patience_ns == 0)
        letters->options.patience_ns = TOW_MULTI_HOST_PATIENCE_NS;
    tow_list_init(&letters->retired);
    tow_list_init(&letters->boxes);
    tow_list_init(&letters->unclaimed);
    tow_list_init(&letters->unrouted);
    letters->tick.fire = tick;
    letters->end_post.run = reap;
    tow_status_t status = open_door(letters);
    if (status != TOW_OK) {
        free_letters(letters);
        return status;
    }
    *out_letters = letters;
    return TOW_OK;
}

static void return_unrouted(tow_letters_t *letters)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&letters->unrouted)) != NULL)
        letters_return(letters, TOW_CONTAINER_OF(item, tow_envelope_t, list));
}

static void door_closed(void *context)
{
    tow_letters_t *letters = context;
    letters->door_is_closed = true;
    letters_peer_gone(letters);
}

/* Whether everything that was sent has arrived, or never will. */
static bool is_drained(const tow_letters_t *letters)
{
    size_t cursor = 0;
    uint64_t key;
    void *peer;
    while (tow_map_next(&letters->peers, &cursor, &key, &peer))
        if (peer_has_mail(peer)) return false;
    return true;
}

static void close_all(tow_letters_t *letters)
{
    letters->is_closing = true;
    tow_env_timer_stop(letters->env, &letters->tick);
    while (!tow_list_is_empty(&letters->unclaimed))
        drop(letters, TOW_CONTAINER_OF(tow_list_pop_front(&letters->unclaimed),
                                       tow_letter_t, list));
    size_t cursor = 0;
    uint64_t key;
    void *peer;
    while (tow_map_next(&letters->peers, &cursor, &key, &peer)) {
        tow_map_remove(&letters->peers, key);
        peer_retire(peer);
    }
    return_unrouted(letters);
    tow_region_close(letters->door, (tow_closed_t){door_closed, letters});
}

/* A peer may still wait for the last letters. */
static void drain(tow_timer_t *timer)
{
    tow_letters_t *letters = TOW_CONTAINER_OF(timer, tow_letters_t, tick);
    const int64_t now_ns = tow_env_now_ns(letters->env);
    if (is_drained(letters) || now_ns >= letters->linger_ns)
        close_all(letters);
    else
        tow_env_timer_start(letters->env, timer,
                            now_ns + TOW_MULTI_HOST_DRAIN_LOOK_NS);
}

void tow_letters_close(tow_letters_t *letters, tow_closed_t closed)
{
    TOW_ASSERT(letters->linger_ns == 0);
    TOW_ASSERT(tow_list_is_empty(&letters->boxes));
    letters->closed = closed;
    letters->linger_ns =
        tow_env_now_ns(letters->env) + TOW_MULTI_HOST_LINGER_NS;
    letters->tick.fire = drain;
    tow_env_timer_start(letters->env, &letters->tick, 0);
}

void tow_letters_destroy(tow_letters_t *letters)
{
    if (letters == NULL) return;
    tow_list_t *item;
    while ((item = tow_list_pop_front(&letters->retired)) != NULL)
        peer_free(TOW_CONTAINER_OF(item, tow_letters_peer_t, list));
    size_t cursor = 0;
    uint64_t key;
    void *peer;
    while (tow_map_next(&letters->peers, &cursor, &key, &peer))
        peer_free(peer);
    return_unrouted(letters);
    free_letters(letters);
}

tow_multi_host_peer_t tow_letters_self(const tow_letters_t *letters)
{
    tow_multi_host_peer_t self = {.process_id = letters->options.process_id,
                                  .device_count = letters->options.device_count,
                                  .host_id = letters->options.host_id,
                                  .door = tow_region_key(letters->door)};
    tow_env_lane_address(letters->env, &self.lane_address,
                         &self.lane_address_size);
    return self;
}

tow_letters_stats_t tow_letters_stats(const tow_letters_t *letters)
{
    return letters->stats;
}
