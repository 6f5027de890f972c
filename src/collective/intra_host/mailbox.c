/* Mailboxes: publishing, waiting, reading. */
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/hash.h"
#include "collective/intra_host/intra_host_impl.h"

/* -- Waiting --------------------------------------------------------------- */

/* Sleeps until the futex `word`, which may be NULL, is woken, or for a short
 * time. */
static void sleep_on(const member_op_t *op, _Atomic uint32_t *word,
                     uint32_t expected)
{
    const tow_xla_fiber_ops_t *fiber_ops = op->collective->fiber_ops;
    struct timespec timeout = {.tv_nsec = TOW_INTRA_HOST_SLEEP_NS};
    if (fiber_ops != NULL)
        fiber_ops->sleep(fiber_ops->context, (const uint32_t *)word, expected,
                         1);
    else if (word != NULL)
        syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, NULL, 0);
    else
        nanosleep(&timeout, NULL);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* The state of a wait for one process. */
typedef struct wait_state {
    unsigned poll_count;
    int64_t heartbeat_ns; /* when the heartbeat last changed */
    uint64_t heartbeat;
    size_t rank; /* the member looked at, if any of them may be awaited */
    tow_intra_host_wait_timer_t timer;
} wait_state_t;

static tow_status_t fail_run(member_op_t *op, tow_code_t code,
                             const char *reason)
{
    tow_intra_host_abort(op->host, op->collective->run_id, code, reason);
    return TOW_ERROR(code, "%s", reason);
}

/* Fails the run if the process of member `rank` is dead or frozen. Called only
 * by members that have slept. */
static tow_status_t check_liveness(member_op_t *op, size_t rank,
                                   wait_state_t *state)
{
    const arena_t *arena = op->host->arena;
    const owner_row_t *owner = &arena->owners[op->mailbox_indices[rank]];
    const long long device = op->collective->members[rank];
    const process_row_t *row = &arena->processes[atomic_load(&owner->process)];
    const int pid = atomic_load(&row->pid);
    char reason[200];
    if (atomic_load(&owner->device_plus_one) != device + 1 || pid == 0 ||
        kill(pid, 0) != 0) {
        snprintf(reason, sizeof(reason),
                 "device %lld is lost: its process ended during a collective "
                 "of gang run %llu",
                 device, (unsigned long long)op->collective->run_id);
        return fail_run(op, TOW_UNAVAILABLE, reason);
    }
    const int64_t now_ns = intra_host_clock_ns();
    const uint64_t heartbeat = atomic_load(&row->heartbeat);
    if (heartbeat != state->heartbeat || state->heartbeat_ns == 0) {
        state->heartbeat = heartbeat;
        state->heartbeat_ns = now_ns;
    }
    if (now_ns - state->heartbeat_ns < op->host->heartbeat_timeout_ns)
        return TOW_OK;
    snprintf(reason, sizeof(reason),
             "device %lld does not respond: process %d has had no heartbeat "
             "for %.1f s (limit %.1f s) during a collective of gang run %llu",
             device, pid, (double)(now_ns - state->heartbeat_ns) * 1e-9,
             (double)op->host->heartbeat_timeout_ns * 1e-9,
             (unsigned long long)op->collective->run_id);
    return fail_run(op, TOW_UNAVAILABLE, reason);
}

static void report_wait(const member_op_t *op, tow_intra_host_wait_t *wait,
                        wait_state_t *state)
{
    const tow_xla_collective_t *collective = op->collective;
    wait->device = collective->members[collective->rank];
    wait->run_id = collective->run_id;
    tow_intra_host_wait_report(op->host, &state->timer, wait);
}

static void end_wait(const member_op_t *op, const wait_state_t *state)
{
    tow_intra_host_wait_end(op->host, &state->timer, op->collective);
}

static tow_status_t check_abort(member_op_t *op)
{
    const uint64_t count = atomic_load_explicit(&op->host->arena->abort_count,
                                                memory_order_acquire);
    if (TOW_LIKELY(count == op->abort_count)) return TOW_OK;
    op->abort_count = count;
    return intra_host_abort_of(op->host, op->collective->run_id);
}

/* Makes the members of this process sleep instead of yielding until `end_ns`. */
static void stop_yielding(tow_intra_host_t *host, int64_t end_ns)
{
    atomic_store_explicit(&host->contended_ns, end_ns, memory_order_relaxed);
    atomic_store_explicit(&host->yielding_since_ns, end_ns,
                          memory_order_relaxed);
}

/* Yields the core. Members stop yielding for a while if other threads kept the
 * core for long, and at regular intervals. */
static void yield_core(tow_intra_host_t *host)
{
    const int64_t start_ns = intra_host_clock_ns();
    sched_yield();
    const int64_t now_ns = intra_host_clock_ns();
    const int64_t since_ns =
        atomic_load_explicit(&host->yielding_since_ns, memory_order_relaxed);
    if (TOW_UNLIKELY(now_ns - start_ns > TOW_INTRA_HOST_LONG_YIELD_NS))
        stop_yielding(host, now_ns + TOW_INTRA_HOST_CONTENDED_NS);
    else if (TOW_UNLIKELY(now_ns - since_ns > TOW_INTRA_HOST_YIELDING_NS))
        stop_yielding(host, now_ns + TOW_INTRA_HOST_REST_NS);
}

/* How often to yield before sleeping. */
static unsigned yield_count(const member_op_t *op)
{
    tow_intra_host_t *host = op->host;
    const int64_t contended_ns =
        atomic_load_explicit(&host->contended_ns, memory_order_relaxed);
    if (contended_ns != 0 && intra_host_clock_ns() < contended_ns) return 0;
    return op->collective->member_count <= host->core_count
               ? TOW_INTRA_HOST_YIELD_COUNT
               : TOW_INTRA_HOST_GANG_YIELD_COUNT;
}

/* Runs the other fibers of our thread. False when it is time to sleep. */
static bool yield_fiber(const tow_xla_fiber_ops_t *fiber_ops,
                        wait_state_t *state)
{
    const bool is_first = state->poll_count == 0;
    state->poll_count = 1;
    return fiber_ops->yield(fiber_ops->context, is_first) == 0;
}

/* One pause between two polls: spins, then yields the core. False when it is
 * time to sleep. */
static bool spin_or_yield(const member_op_t *op, wait_state_t *state)
{
    tow_intra_host_wait_begin(&state->timer);
    if (op->collective->fiber_ops != NULL)
        return yield_fiber(op->collective->fiber_ops, state);
    const bool is_alone = op->collective->member_count <= op->host->core_count;
    const unsigned spin_count = is_alone ? TOW_INTRA_HOST_SPIN_COUNT : 0;
    const unsigned count = state->poll_count;
    if (count >= spin_count + yield_count(op)) return false;
    state->poll_count++;
    if (count < spin_count)
        intra_host_relax();
    else
        yield_core(op->host);
    return true;
}

/* One pause between two polls of one mailbox; in the end sleeps until it is
 * published to, `seen` being its publish count before the last poll. */
static tow_status_t pause_for(member_op_t *op, size_t rank, uint32_t seen,
                              wait_state_t *state)
{
    TOW_RETURN_IF_ERROR(check_abort(op));
    if (spin_or_yield(op, state)) return TOW_OK;
    mailbox_t *box = member_op_mailbox(op, rank);
    atomic_fetch_add(&box->waiter_count, 1);
    sleep_on(op, &box->publish_count, seen);
    atomic_fetch_sub(&box->waiter_count, 1);
    TOW_RETURN_IF_ERROR(check_liveness(op, rank, state));
    if (TOW_UNLIKELY(tow_intra_host_wait_is_long(&state->timer)))
        report_wait(
            op,
            &(tow_intra_host_wait_t){
                .missing_count = 1, .missing = {op->collective->members[rank]}},
            state);
    return TOW_OK;
}

/* -- Keys ------------------------------------------------------------------ */

/* The run id is not the seed of the hash: for 16 bytes XXH3 only adds the seed
 * to them, so that devices 0, 1 in run 1 would equal devices 1, 0 in run 2. */
static uint64_t key_of(const tow_xla_collective_t *collective)
{
    uint64_t key = tow_hash_bytes(
        collective->members, collective->member_count * sizeof(int64_t), 0);
    key = tow_mix64(key + tow_mix64(collective->run_id));
    key = tow_mix64(key ^ collective->op_id);
    return tow_mix64(key + collective->occurrence);
}

static uint64_t step_key(const member_op_t *op, uint64_t step)
{
    return tow_mix64(op->key + step) | 1; /* Never 0. */
}

/* -- Finding the members --------------------------------------------------- */

/* SIZE_MAX if the device has not joined. Mailboxes are claimed from the front.
 */
static size_t find_mailbox(const arena_t *arena, int64_t device_id)
{
    for (size_t i = 0; i < TOW_INTRA_HOST_DEVICE_COUNT_MAX; i++)
        if (atomic_load_explicit(&arena->owners[i].device_plus_one,
                                 memory_order_acquire) == device_id + 1)
            return i;
    return SIZE_MAX;
}

static tow_status_t find_or_await(member_op_t *op, int64_t device_id,
                                  wait_state_t *state, uint16_t *out_index)
{
    for (;;) {
        const size_t index = find_mailbox(op->host->arena, device_id);
        *out_index = (uint16_t)index;
        if (index != SIZE_MAX) return TOW_OK;
        TOW_RETURN_IF_ERROR(check_abort(op));
        tow_intra_host_wait_begin(&state->timer);
        if (intra_host_clock_ns() - state->timer.begun_ns >
            TOW_INTRA_HOST_JOIN_TIMEOUT_NS)
            break;
        if (!spin_or_yield(op, state)) sleep_on(op, NULL, 0);
    }
    char reason[160];
    snprintf(reason, sizeof(reason),
             "device %lld is not on this host: it has not joined the arena "
             "within %.1f s",
             (long long)device_id, TOW_INTRA_HOST_JOIN_TIMEOUT_NS * 1e-9);
    return fail_run(op, TOW_UNAVAILABLE, reason);
}

static tow_status_t await_mailbox(member_op_t *op, int64_t device_id,
                                  uint16_t *out_index)
{
    wait_state_t state = {.poll_count = UINT_MAX}; /* Sleep at once. */
    tow_status_t status = find_or_await(op, device_id, &state, out_index);
    end_wait(op, &state);
    return status;
}

tow_status_t member_op_begin(member_op_t *op)
{
    const tow_xla_collective_t *collective = op->collective;
    op->key = key_of(collective);
    op->abort_count = UINT64_MAX; /* Search the aborts once. */
    TOW_RETURN_IF_ERROR(check_abort(op));
    for (size_t i = 0; i < collective->member_count; i++)
        TOW_RETURN_IF_ERROR(
            await_mailbox(op, collective->members[i], &op->mailbox_indices[i]));
    return TOW_OK;
}

/* -- Waiting for all members ----------------------------------------------- */

static bool has_published(const mailbox_t *box, uint64_t key)
{
    return atomic_load(&box->halves[0].key) == key ||
           atomic_load(&box->halves[1].key) == key;
}

/* The first member, from `rank` on, that has not published; or the number of
 * members. Published bytes stay until we have read them. */
static size_t first_missing(const member_op_t *op, size_t rank, uint64_t key)
{
    while (rank < op->collective->member_count &&
           has_published(member_op_mailbox(op, rank), key))
        rank++;
    return rank;
}

static gang_futex_t *gang_futex(const member_op_t *op, uint64_t key)
{
    return &op->host->arena
                ->gang_futexes[key / 2 % TOW_INTRA_HOST_GANG_FUTEX_COUNT];
}

/* After we have published. Of the last members to publish at least one sees all
 * publications; it also sees every sleeper, because these increment
 * waiter_count before they poll again. */
static void wake_if_complete(const member_op_t *op, uint64_t key)
{
    gang_futex_t *publish_count = gang_futex(op, key);
    if (atomic_load(&publish_count->waiter_count) == 0 ||
        first_missing(op, 0, key) < op->collective->member_count)
        return;
    atomic_fetch_add(&publish_count->count, 1);
    futex_wake_all(&publish_count->count);
}

/* Sleeps until all members have published, or for a short time. */
static void sleep_for_gang(const member_op_t *op, size_t rank, uint64_t key)
{
    gang_futex_t *publish_count = gang_futex(op, key);
    const uint32_t seen = atomic_load(&publish_count->count);
    atomic_fetch_add(&publish_count->waiter_count, 1);
    if (first_missing(op, rank, key) < op->collective->member_count)
        sleep_on(op, &publish_count->count, seen);
    atomic_fetch_sub(&publish_count->waiter_count, 1);
}

static void report_missing(const member_op_t *op, size_t rank, uint64_t key,
                           wait_state_t *state)
{
    const tow_xla_collective_t *collective = op->collective;
    tow_intra_host_wait_t wait = {0};
    while ((rank = first_missing(op, rank, key)) < collective->member_count &&
           wait.missing_count < TOW_INTRA_HOST_MISSING_MAX)
        wait.missing[wait.missing_count++] = collective->members[rank++];
    report_wait(op, &wait, state);
}

static tow_status_t await_all(member_op_t *op, uint64_t key,
                              wait_state_t *state)
{
    for (size_t rank = 0;;) {
        const size_t missing = first_missing(op, rank, key);
        if (missing == op->collective->member_count) return TOW_OK;
        if (missing != rank) state->heartbeat_ns = 0; /* Another process. */
        rank = missing;
        TOW_RETURN_IF_ERROR(check_abort(op));
        if (spin_or_yield(op, state)) continue;
        sleep_for_gang(op, rank, key);
        TOW_RETURN_IF_ERROR(check_liveness(op, rank, state));
        if (TOW_UNLIKELY(tow_intra_host_wait_is_long(&state->timer)))
            report_missing(op, rank, key, state);
    }
}

tow_status_t mailbox_await_all(member_op_t *op, uint64_t step)
{
    wait_state_t state = {0};
    tow_status_t status = await_all(op, step_key(op, step), &state);
    end_wait(op, &state);
    return status;
}

/* -- Publishing ------------------------------------------------------------ */

static uint32_t readers_left(uint64_t ticket)
{
    return (uint32_t)(ticket & 0xffff);
}

/* Our own mailbox, prepared and about to be published to. Fields that other
 * processes write are not checked. */
static void mailbox_check(const mailbox_t *box, mailbox_readers_t readers)
{
    TOW_ASSERT(box->last_half < TOW_COUNT_OF(box->halves));
    TOW_ASSERT(atomic_load_explicit(&box->halves[box->last_half].key,
                                    memory_order_relaxed) == 0);
    TOW_ASSERT(readers.count <= 0xffff);
    TOW_ASSERT(readers.only < 0 || readers.count == 1);
}

static bool is_aborted(const tow_intra_host_t *host, uint64_t run_id)
{
    tow_status_t aborted = intra_host_abort_of(host, run_id);
    const bool is = aborted != TOW_OK;
    tow_status_ignore(aborted, "only whether it was aborted matters");
    return is;
}

/* Whether a process has left or died since the bytes were published. */
static bool any_process_left(const tow_intra_host_t *host,
                             const mailbox_half_t *half)
{
    return atomic_load(&host->arena->departed_count) != half->departed_count ||
           intra_host_any_is_dead(host);
}

/* The readers did not come. If they come later, the abort fails them. */
static void abort_unread_run(const member_op_t *op, const mailbox_half_t *half)
{
    const tow_xla_collective_t *collective = op->collective;
    char reason[200];
    snprintf(reason, sizeof(reason),
             "data that device %lld sent in gang run %llu was not read within "
             "%.0f s; the device has continued with run %llu",
             (long long)collective->members[collective->rank],
             (unsigned long long)half->run_id,
             TOW_INTRA_HOST_UNREAD_TIMEOUT_NS * 1e-9,
             (unsigned long long)collective->run_id);
    tow_intra_host_abort(op->host, half->run_id, TOW_DEADLINE_EXCEEDED, reason);
}

/* Readers of our own run come, or it fails, which the caller checks.
 * Readers of an earlier run may never come: then we reuse the half, and late
 * readers detect the new version. */
static bool may_reuse_half(const member_op_t *op, const mailbox_half_t *half,
                           int64_t waited_ns)
{
    const tow_intra_host_t *host = op->host;
    if (half->run_id == op->collective->run_id) return false;
    if (is_aborted(host, half->run_id)) return true;
    if (waited_ns > host->heartbeat_timeout_ns && any_process_left(host, half))
        return true;
    if (waited_ns <= TOW_INTRA_HOST_UNREAD_TIMEOUT_NS) return false;
    abort_unread_run(op, half);
    return true;
}

/* One pause between two polls for late readers. True after a pause long enough
 * to look for the reason. */
static bool pause_for_readers(const member_op_t *op, unsigned count,
                              wait_state_t *state)
{
    tow_intra_host_wait_begin(&state->timer);
    const bool is_long = state->timer.since_ns != 0 &&
                         intra_host_clock_ns() - state->timer.since_ns >
                             TOW_INTRA_HOST_READER_SPIN_NS;
    if (op->collective->fiber_ops != NULL || is_long) {
        if (!is_long && spin_or_yield(op, state)) return false;
        sleep_on(op, NULL, 0);
        return true;
    }
    if (count >= TOW_INTRA_HOST_SPIN_COUNT)
        sched_yield();
    else
        intra_host_relax();
    return count >= TOW_INTRA_HOST_SPIN_COUNT && count % 64 == 0;
}

/* Fails the run if a reader of it died or is frozen. Who has not read yet is
 * not recorded, so this looks at one member at a time, and goes on to the next
 * when that one has shown a heartbeat. */
static tow_status_t check_readers(member_op_t *op, const mailbox_half_t *half,
                                  wait_state_t *state)
{
    if (half->run_id != op->collective->run_id) return TOW_OK;
    const bool is_new = state->heartbeat_ns == 0;
    const uint64_t heartbeat = state->heartbeat;
    TOW_RETURN_IF_ERROR(check_liveness(op, state->rank, state));
    if (is_new || state->heartbeat == heartbeat) return TOW_OK;
    state->rank = (state->rank + 1) % op->collective->member_count;
    state->heartbeat_ns = 0;
    return TOW_OK;
}

static tow_status_t await_readers(member_op_t *op, const mailbox_half_t *half,
                                  wait_state_t *state)
{
    for (unsigned count = 0;; count++) {
        if (readers_left(
                atomic_load_explicit(&half->ticket, memory_order_acquire)) == 0)
            return TOW_OK;
        TOW_RETURN_IF_ERROR(check_abort(op));
        if (!pause_for_readers(op, count, state)) continue;
        TOW_RETURN_IF_ERROR(check_readers(op, half, state));
        /* Several readers are not recorded by name. */
        if (tow_intra_host_wait_is_long(&state->timer))
            report_wait(op,
                        &(tow_intra_host_wait_t){
                            .missing_count = half->only_reader >= 0,
                            .missing = {half->only_reader}},
                        state);
        if (may_reuse_half(op, half,
                           intra_host_clock_ns() - state->timer.since_ns))
            return TOW_OK;
    }
}

tow_status_t mailbox_prepare(member_op_t *op, uint8_t **out_stage)
{
    mailbox_t *box = member_op_mailbox(op, op->collective->rank);
    box->last_half ^= 1;
    mailbox_half_t *half = &box->halves[box->last_half];
    wait_state_t state = {0};
    tow_status_t status = await_readers(op, half, &state);
    end_wait(op, &state);
    if (status != TOW_OK) return status;
    atomic_store_explicit(&half->key, 0, memory_order_relaxed);
    *out_stage = box->stage[box->last_half];
    return TOW_OK;
}

void mailbox_publish(member_op_t *op, uint64_t step, mailbox_readers_t readers)
{
    mailbox_t *box = member_op_mailbox(op, op->collective->rank);
    mailbox_half_t *half = &box->halves[box->last_half];
    const uint64_t version =
        (atomic_load_explicit(&half->ticket, memory_order_relaxed) >> 16) + 1;
    const uint64_t key = step_key(op, step);
    mailbox_check(box, readers);
    half->only_reader = readers.only;
    half->run_id = op->collective->run_id;
    half->departed_count = atomic_load_explicit(
        &op->host->arena->departed_count, memory_order_relaxed);
    atomic_store_explicit(&half->ticket, version << 16 | readers.count,
                          memory_order_relaxed);
    atomic_store_explicit(&half->key, key, memory_order_release);
    /* Also the fence before we read waiter_count. */
    atomic_fetch_add(&box->publish_count, 1);
    if (atomic_load(&box->waiter_count) != 0)
        futex_wake_all(&box->publish_count);
    wake_if_complete(op, key);
}

/* -- Reading --------------------------------------------------------------- */

static bool find_message(mailbox_t *box, uint64_t key,
                         mailbox_message_t *out_message)
{
    for (unsigned i = 0; i < 2; i++) {
        mailbox_half_t *half = &box->halves[i];
        if (atomic_load_explicit(&half->key, memory_order_acquire) != key)
            continue;
        *out_message =
            (mailbox_message_t){.half = half,
                                .bytes = box->stage[i],
                                .ticket = atomic_load_explicit(
                                    &half->ticket, memory_order_relaxed)};
        return true;
    }
    return false;
}

tow_status_t mailbox_fetch(member_op_t *op, size_t rank, uint64_t step,
                           mailbox_message_t *out_message)
{
    mailbox_t *box = member_op_mailbox(op, rank);
    const uint64_t key = step_key(op, step);
    wait_state_t state = {0};
    tow_status_t status = TOW_OK;
    while (status == TOW_OK) {
        const uint32_t seen =
            atomic_load_explicit(&box->publish_count, memory_order_acquire);
        if (find_message(box, key, out_message)) break;
        status = pause_for(op, rank, seen, &state);
    }
    end_wait(op, &state);
    return status;
}

tow_status_t mailbox_release(member_op_t *op, size_t rank,
                             const mailbox_message_t *message)
{
    uint64_t ticket =
        atomic_load_explicit(&message->half->ticket, memory_order_relaxed);
    for (;;) {
        if (ticket >> 16 != message->ticket >> 16) {
            TOW_RETURN_IF_ERROR(
                intra_host_abort_of(op->host, op->collective->run_id));
            return TOW_ERROR(TOW_ABORTED,
                             "device %lld has replaced its data after an abort",
                             (long long)op->collective->members[rank]);
        }
        TOW_ASSERT(readers_left(ticket) > 0);
        if (atomic_compare_exchange_weak_explicit(
                &message->half->ticket, &ticket, ticket - 1,
                memory_order_acq_rel, memory_order_relaxed))
            return TOW_OK;
    }
}
