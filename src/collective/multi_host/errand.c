/* Communication between a leader's thread and the loop: envelopes in one
 * direction, letters in the other.
 *
 * Both sides access an errand under its lock, and never call other modules with
 * it. The thread leaves without waiting: envelopes in flight, and the errand
 * itself, then belong to the loop. */
#include <linux/futex.h>
#include <sched.h> /* tow-allow: offers its core while it waits */
#include <sys/syscall.h>
#include <time.h> /* tow-allow: how long a futex sleeps */
#include <unistd.h>

#include "base/alloc.h"
#include "collective/multi_host/multi_host_impl.h"

static void lock(errand_t *errand)
{
    pthread_mutex_lock(&errand->lock); /* tow-allow: the face */
}

static void unlock(errand_t *errand)
{
    pthread_mutex_unlock(&errand->lock);
}

static void splice(tow_list_t *to, tow_list_t *from)
{
    if (tow_list_is_empty(from)) return;
    from->next->previous = to->previous;
    to->previous->next = from->next;
    from->previous->next = to;
    to->previous = from->previous;
    tow_list_init(from);
}

static void ring(errand_t *errand)
{
    atomic_fetch_add(&errand->bell, 1);
    if (atomic_load(&errand->sleeper_count) != 0)
        syscall(SYS_futex, &errand->bell, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL,
                NULL, 0);
}

/* -- Envelopes ------------------------------------------------------------- */

/* Envelopes of full size are cached; the others are cheap to allocate. */
static bool is_full_size(const errand_t *errand)
{
    return errand->capacity == TOW_LETTER_BYTES_MAX;
}

static void put_away(errand_t *errand, tow_envelope_t *envelope)
{
    tow_multi_host_t *span = errand->span;
    bool is_kept = false;
    if (is_full_size(errand)) {
        pthread_mutex_lock(&span->lock); /* tow-allow: the face */
        is_kept = span->spare_count < TOW_MULTI_HOST_ENVELOPE_SPARE_COUNT;
        if (is_kept) {
            tow_list_append(&span->spares, &envelope->list);
            span->spare_count++;
        }
        pthread_mutex_unlock(&span->lock);
    }
    if (!is_kept) tow_free(envelope);
}

static tow_envelope_t *take_spare(tow_multi_host_t *span)
{
    pthread_mutex_lock(&span->lock); /* tow-allow: the face */
    tow_list_t *item = tow_list_pop_front(&span->spares);
    if (item != NULL) span->spare_count--;
    pthread_mutex_unlock(&span->lock);
    return item == NULL ? NULL : TOW_CONTAINER_OF(item, tow_envelope_t, list);
}

static void returned(tow_envelope_t *envelope);

static tow_envelope_t *make_envelope(errand_t *errand)
{
    tow_envelope_t *envelope =
        is_full_size(errand) ? take_spare(errand->span) : NULL;
    if (envelope == NULL) {
        const size_t size = sizeof(*envelope) + errand->capacity;
        envelope = tow_aligned_alloc(alignof(tow_envelope_t),
                                     (size + alignof(tow_envelope_t) - 1) &
                                         -alignof(tow_envelope_t));
        if (envelope == NULL) return NULL;
    }
    *envelope = (tow_envelope_t){.returned = returned, .context = errand};
    tow_list_init(&envelope->list);
    return envelope;
}

tow_envelope_t *errand_envelope(errand_t *errand)
{
    lock(errand);
    tow_list_t *item = tow_list_pop_front(&errand->spares);
    unlock(errand);
    if (item != NULL) return TOW_CONTAINER_OF(item, tow_envelope_t, list);
    if (errand->envelope_count >= TOW_MULTI_HOST_ENVELOPE_COUNT_MAX)
        return NULL;
    tow_envelope_t *envelope = make_envelope(errand);
    if (envelope != NULL) errand->envelope_count++;
    return envelope;
}

/* -- The loop's side ------------------------------------------------------- */

static void free_errand(errand_t *errand)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&errand->spares)) != NULL)
        put_away(errand, TOW_CONTAINER_OF(item, tow_envelope_t, list));
    tow_status_ignore(errand->failure, "the thread has left");
    pthread_mutex_destroy(&errand->lock);
    tow_free(errand->processes);
    tow_free(errand);
}

/* The current errand of the same device may be waiting for this. */
static void ring_successor(errand_t *errand)
{
    tow_multi_host_t *span = errand->span;
    pthread_mutex_lock(&span->lock); /* tow-allow: the face */
    if (span->errands[errand->device] != NULL)
        ring(span->errands[errand->device]);
    pthread_mutex_unlock(&span->lock);
}

static void returned(tow_envelope_t *envelope)
{
    errand_t *errand = envelope->context;
    atomic_fetch_sub(&((backlog_t *)envelope->tally)->count, 1);
    lock(errand);
    tow_list_append(&errand->spares, &envelope->list);
    const bool is_left = errand->is_left;
    unlock(errand);
    errand->under_way_count--;
    if (!is_left)
        ring(errand);
    else
        ring_successor(errand);
    if (is_left && !errand->is_open && errand->under_way_count == 0)
        free_errand(errand);
}

static void arrived(tow_box_t *box, tow_letter_t *letter)
{
    errand_t *errand = TOW_CONTAINER_OF(box, errand_t, box);
    lock(errand);
    tow_list_append(&errand->arrived, &letter->list);
    unlock(errand);
    ring(errand);
}

static void fail(errand_t *errand, tow_status_t take_cause)
{
    lock(errand);
    if (errand->failure == TOW_OK)
        errand->failure = take_cause;
    else
        tow_status_ignore(take_cause, "the first one counts");
    unlock(errand);
    ring(errand);
}

static void failed(tow_box_t *box, tow_status_t cause)
{
    fail(TOW_CONTAINER_OF(box, errand_t, box), tow_status_retain(cause));
}

static const tow_box_handler_t handler = {.arrived = arrived, .failed = failed};

static void send_all(errand_t *errand, tow_list_t *outbox)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(outbox)) != NULL) {
        tow_envelope_t *envelope = TOW_CONTAINER_OF(item, tow_envelope_t, list);
        errand->under_way_count++;
        if (errand->is_open)
            tow_letters_send(errand->span->letters, &errand->box, envelope);
        else
            returned(envelope);
    }
}

static void release_all(tow_list_t *read)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(read)) != NULL)
        tow_letters_release(TOW_CONTAINER_OF(item, tow_letter_t, list));
}

static void open_box(errand_t *errand)
{
    errand->is_open = true; /* Letters may arrive during this call. */
    tow_status_t status =
        tow_letters_open_box(errand->span->letters, &errand->box);
    if (status == TOW_OK) return;
    errand->is_open = false;
    fail(errand, status);
}

/* The thread has left: releases all that it holds. */
static void end(errand_t *errand)
{
    release_all(&errand->arrived);
    release_all(&errand->inbox);
    /* Envelopes returned during this call must not free us yet. */
    errand->under_way_count++;
    if (errand->is_open)
        tow_letters_close_box(errand->span->letters, &errand->box);
    errand->is_open = false;
    if (--errand->under_way_count == 0) free_errand(errand);
}

static void work(tow_post_t *post)
{
    errand_t *errand = TOW_CONTAINER_OF(post, errand_t, post);
    tow_list_t outbox, read;
    tow_list_init(&outbox);
    tow_list_init(&read);
    lock(errand);
    splice(&outbox, &errand->outbox);
    splice(&read, &errand->read);
    errand->is_posted = false;
    const bool is_left = errand->is_left;
    unlock(errand);
    if (!errand->was_opened) {
        errand->was_opened = true;
        open_box(errand);
    }
    release_all(&read);
    /* Queued envelopes are sent even if the thread has left. */
    errand->under_way_count++;
    send_all(errand, &outbox);
    errand->under_way_count--;
    if (is_left) end(errand);
}

/* -- The thread's side ----------------------------------------------------- */

void errand_kick(errand_t *errand)
{
    lock(errand);
    const bool must_post = !errand->is_posted;
    errand->is_posted = true;
    unlock(errand);
    errand->must_kick = false;
    if (must_post) tow_env_post(errand->span->options.env, &errand->post);
}

void errand_send(errand_t *errand, tow_envelope_t *envelope,
                 const gang_host_t *host)
{
    envelope->process = host->process;
    envelope->head.box.to = host->leader;
    envelope->tally = host->backlog;
    atomic_fetch_add(&host->backlog->count, 1);
    lock(errand);
    tow_list_append(&errand->outbox, &envelope->list);
    unlock(errand);
    errand->must_kick = true;
}

void errand_release(errand_t *errand, tow_letter_t *letter)
{
    tow_list_remove(&letter->list);
    lock(errand);
    tow_list_append(&errand->read, &letter->list);
    unlock(errand);
    errand->must_kick = true;
}

tow_letter_t *errand_find(errand_t *errand, int64_t from, uint64_t step)
{
    for (tow_list_t *item = errand->inbox.next; item != &errand->inbox;
         item = item->next) {
        tow_letter_t *letter = TOW_CONTAINER_OF(item, tow_letter_t, list);
        if (letter->head->from == from && letter->head->step == step)
            return letter;
    }
    return NULL;
}

void errand_collect(errand_t *errand)
{
    lock(errand);
    splice(&errand->inbox, &errand->arrived);
    unlock(errand);
}

static tow_status_t failure_of(errand_t *errand)
{
    lock(errand);
    tow_status_t failure = tow_status_retain(errand->failure);
    unlock(errand);
    return failure;
}

/* A hint to the processor that we spin. */
static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void sleep_until_rung(errand_t *errand, uint32_t heard)
{
    struct timespec timeout = {.tv_nsec = TOW_MULTI_HOST_SLEEP_NS};
    atomic_fetch_add(&errand->sleeper_count, 1);
    syscall(SYS_futex, &errand->bell, FUTEX_WAIT_PRIVATE, heard, &timeout, NULL,
            0);
    atomic_fetch_sub(&errand->sleeper_count, 1);
}

/* Runs the other fibers of our thread. */
static void wait_on_fiber(errand_t *errand, uint32_t heard)
{
    const tow_xla_fiber_ops_t *fiber_ops = errand->fiber_ops;
    for (int is_first = 1; atomic_load(&errand->bell) == heard; is_first = 0) {
        if (fiber_ops->yield(fiber_ops->context, is_first) == 0) continue;
        atomic_fetch_add(&errand->sleeper_count, 1);
        fiber_ops->sleep(fiber_ops->context, (const uint32_t *)&errand->bell,
                         heard, 0);
        atomic_fetch_sub(&errand->sleeper_count, 1);
        return;
    }
}

static tow_status_t check_abort(const errand_t *errand)
{
    return tow_intra_host_check(errand->span->options.host,
                                errand->box.name.run_id);
}

tow_status_t errand_wait(errand_t *errand, uint32_t heard)
{
    TOW_RETURN_IF_ERROR(failure_of(errand));
    if (errand->must_kick) errand_kick(errand);
    if (errand->fiber_ops != NULL) {
        wait_on_fiber(errand, heard);
        return check_abort(errand);
    }
    for (unsigned i = 0; i < errand->span->spin_count; i++) {
        if (atomic_load_explicit(&errand->bell, memory_order_acquire) != heard)
            return TOW_OK;
        if (i % 16 == 15)
            sched_yield();
        else
            relax();
    }
    sleep_until_rung(errand, heard);
    return check_abort(errand);
}

static size_t capacity_for(const tow_xla_collective_t *collective,
                           const gang_t *gang)
{
    const size_t bytes = collective->element_count * collective->element_bytes;
    const bool is_small = bytes <= TOW_MULTI_HOST_SMALL_BYTES /
                                       gang->member_count / gang->local_max;
    return is_small ? TOW_MULTI_HOST_SMALL_BYTES : TOW_LETTER_BYTES_MAX;
}

/* The current errand of this device. */
static void announce(errand_t *errand, errand_t *current)
{
    tow_multi_host_t *span = errand->span;
    pthread_mutex_lock(&span->lock); /* tow-allow: the face */
    span->errands[errand->device] = current;
    pthread_mutex_unlock(&span->lock);
}

tow_status_t errand_begin(tow_multi_host_t *span,
                          const tow_xla_collective_t *collective,
                          const gang_t *gang, errand_t **out_errand)
{
    errand_t *errand = tow_calloc(1, sizeof(*errand));
    uint32_t *processes =
        tow_calloc(gang->process_count, sizeof(*gang->processes));
    if (errand == NULL || processes == NULL) {
        tow_free(errand);
        tow_free(processes);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    memcpy(processes, gang->processes,
           gang->process_count * sizeof(*gang->processes));
    errand->span = span;
    errand->fiber_ops = collective->fiber_ops;
    errand->processes = processes;
    errand->capacity = capacity_for(collective, gang);
    errand->post.run = work;
    errand->must_kick = true; /* To open the box. */
    errand->box =
        (tow_box_t){.name = {.members = gang->members,
                             .run_id = collective->run_id,
                             .op_id = collective->op_id,
                             .occurrence = collective->occurrence,
                             .to = collective->members[collective->rank]},
                    .handler = &handler,
                    .processes = processes,
                    .process_count = gang->process_count,
                    .partner_count = gang->partner_count};
    tow_list_init(&errand->inbox);
    tow_list_init(&errand->outbox);
    tow_list_init(&errand->read);
    tow_list_init(&errand->arrived);
    tow_list_init(&errand->spares);
    pthread_mutex_init(&errand->lock, NULL);
    errand->device = (size_t)(errand->box.name.to % TOW_XLA_PROCESS_STRIDE);
    announce(errand, errand);
    *out_errand = errand;
    return TOW_OK;
}

void errand_leave(errand_t *errand)
{
    announce(errand, NULL);
    lock(errand);
    errand->is_left = true;
    const bool must_post = !errand->is_posted;
    errand->is_posted = true;
    unlock(errand);
    if (must_post) tow_env_post(errand->span->options.env, &errand->post);
}
