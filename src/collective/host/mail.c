/* Mailboxes: putting, waiting, taking. */
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
#include "collective/host/host_impl.h"

/* -- Waiting ---------------------------------------------------------------- */

/* For a while; or until `word`, which may be NULL, is rung. */
static void sleep_on(const meeting_t *meeting, _Atomic uint32_t *word,
                     uint32_t expected)
{
    const tow_xla_turns_t *turns = meeting->collective->turns;
    struct timespec timeout = {.tv_nsec = TOW_HOST_SLEEP_NS};
    if (turns != NULL)
        turns->sleep(turns->context, (const uint32_t *)word, expected, 1);
    else if (word != NULL)
        syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, NULL, 0);
    else
        nanosleep(&timeout, NULL);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* How long we have waited for one process, and what it did meanwhile. */
typedef struct wait_state {
    unsigned look_count;
    int64_t heartbeat_ns; /* when the heartbeat last changed */
    uint64_t heartbeat;
    tow_host_watch_t watch;
} wait_state_t;

static tow_status_t fail_run(meeting_t *meeting, tow_code_t code,
                             const char *reason)
{
    tow_host_abort(meeting->host, meeting->collective->run_id, code, reason);
    return TOW_ERROR(code, "%s", reason);
}

/* Dead or frozen? Asked only by those who have waited for a while. */
static tow_status_t check_life(meeting_t *meeting, size_t rank,
                               wait_state_t *state)
{
    const arena_t *arena = meeting->host->arena;
    const owner_row_t *owner = &arena->owners[meeting->boxes[rank]];
    const long long device = meeting->collective->members[rank];
    const process_row_t *row = &arena->processes[atomic_load(&owner->process)];
    const int pid = atomic_load(&row->pid);
    char reason[200];
    if (atomic_load(&owner->device_plus_one) != device + 1 || pid == 0 ||
        kill(pid, 0) != 0) {
        snprintf(reason, sizeof(reason),
                 "device %lld is gone: its process ended inside a collective "
                 "of gang run %llu",
                 device, (unsigned long long)meeting->collective->run_id);
        return fail_run(meeting, TOW_UNAVAILABLE, reason);
    }
    const int64_t now_ns = host_clock_ns();
    const uint64_t heartbeat = atomic_load(&row->heartbeat);
    if (heartbeat != state->heartbeat || state->heartbeat_ns == 0) {
        state->heartbeat = heartbeat;
        state->heartbeat_ns = now_ns;
    }
    if (now_ns - state->heartbeat_ns < meeting->host->patience_ns)
        return TOW_OK;
    snprintf(reason, sizeof(reason),
             "device %lld does not answer: process %d has given no sign of "
             "life for %.1f s, inside a collective of gang run %llu",
             device, pid, (double)(now_ns - state->heartbeat_ns) * 1e-9,
             (unsigned long long)meeting->collective->run_id);
    return fail_run(meeting, TOW_UNAVAILABLE, reason);
}

/* Somebody may ask for whom we wait. */
static void note(const meeting_t *meeting, tow_host_wait_t *wait,
                 wait_state_t *state)
{
    const tow_xla_collective_t *collective = meeting->collective;
    wait->device = collective->members[collective->rank];
    wait->run_id = collective->run_id;
    tow_host_wait_note(meeting->host, &state->watch, wait);
}

static void stop_waiting(const meeting_t *meeting, const wait_state_t *state)
{
    const tow_xla_collective_t *collective = meeting->collective;
    tow_host_wait_end(meeting->host, &state->watch,
                      collective->members[collective->rank]);
}

static tow_status_t check_abort(meeting_t *meeting)
{
    const uint64_t count = atomic_load_explicit(
        &meeting->host->arena->abort_count, memory_order_acquire);
    if (TOW_LIKELY(count == meeting->abort_count)) return TOW_OK;
    meeting->abort_count = count;
    return host_abort_of(meeting->host, meeting->collective->run_id);
}

/* Offers the core, and notes if others took it for long. */
static void offer_core(tow_host_t *host)
{
    const int64_t start_ns = host_clock_ns();
    sched_yield();
    const int64_t now_ns = host_clock_ns();
    if (TOW_UNLIKELY(now_ns - start_ns > TOW_HOST_LONG_YIELD_NS))
        atomic_store_explicit(&host->crowded_ns, now_ns + TOW_HOST_CROWDED_NS,
                              memory_order_relaxed);
}

/* How often to offer it before going to sleep. */
static unsigned offer_count(const meeting_t *meeting)
{
    tow_host_t *host = meeting->host;
    if (meeting->collective->member_count <= host->core_count)
        return TOW_HOST_YIELD_COUNT;
    const int64_t crowded_ns =
        atomic_load_explicit(&host->crowded_ns, memory_order_relaxed);
    return crowded_ns != 0 && host_clock_ns() < crowded_ns
               ? TOW_HOST_CROWDED_YIELD_COUNT
               : TOW_HOST_GANG_YIELD_COUNT;
}

/* Other devices of our thread go on while we wait. */
static bool pass_turn(const tow_xla_turns_t *turns, wait_state_t *state)
{
    const bool is_first = state->look_count == 0;
    state->look_count = 1;
    return turns->pass(turns->context, is_first) == 0;
}

/* One pause between two looks: spins, then offers the core. False when it is time
 * to sleep. */
static bool pause_awake(const meeting_t *meeting, wait_state_t *state)
{
    if (meeting->collective->turns != NULL)
        return pass_turn(meeting->collective->turns, state);
    const bool is_alone =
        meeting->collective->member_count <= meeting->host->core_count;
    const unsigned spin_count = is_alone ? TOW_HOST_SPIN_COUNT : 0;
    const unsigned count = state->look_count;
    if (count >= spin_count + offer_count(meeting)) return false;
    state->look_count++;
    if (count < spin_count)
        host_relax();
    else
        offer_core(meeting->host);
    return true;
}

/* One pause between two looks at one mailbox: in the end sleeps until its bell
 * rings, which had rung `heard` times before the last look. */
static tow_status_t pause_for(meeting_t *meeting, size_t rank, uint32_t heard,
                              wait_state_t *state)
{
    TOW_RETURN_IF_ERROR(check_abort(meeting));
    if (pause_awake(meeting, state)) return TOW_OK;
    mailbox_t *box = meeting_box(meeting, rank);
    atomic_fetch_add(&box->waiter_count, 1);
    sleep_on(meeting, &box->bell, heard);
    atomic_fetch_sub(&box->waiter_count, 1);
    TOW_RETURN_IF_ERROR(check_life(meeting, rank, state));
    if (TOW_UNLIKELY(tow_host_wait_is_long(&state->watch)))
        note(
            meeting,
            &(tow_host_wait_t){.missing_count = 1,
                               .missing = {meeting->collective->members[rank]}},
            state);
    return TOW_OK;
}

/* -- Keys ------------------------------------------------------------------- */

/* The run is no seed: of 16 bytes XXH3 only adds it to them, and devices 0, 1 in run
 * 1 are then devices 1, 0 in run 2. */
static uint64_t key_of(const tow_xla_collective_t *collective)
{
    uint64_t key = tow_hash_bytes(
        collective->members, collective->member_count * sizeof(int64_t), 0);
    key = tow_mix64(key + tow_mix64(collective->run_id));
    key = tow_mix64(key ^ collective->op_id);
    return tow_mix64(key + collective->occurrence);
}

static uint64_t step_key(const meeting_t *meeting, uint64_t step)
{
    return tow_mix64(meeting->key + step) | 1; /* Never 0. */
}

/* -- Finding the members ---------------------------------------------------- */

/* SIZE_MAX when it is not there. Devices are claimed from the front. */
static size_t find_mailbox(const arena_t *arena, int64_t device_id)
{
    for (size_t i = 0; i < TOW_HOST_DEVICE_COUNT_MAX; i++)
        if (atomic_load_explicit(&arena->owners[i].device_plus_one,
                                 memory_order_acquire) == device_id + 1)
            return i;
    return SIZE_MAX;
}

static tow_status_t await_mailbox(meeting_t *meeting, int64_t device_id,
                                  uint16_t *out_index)
{
    const int64_t start_ns = host_clock_ns();
    wait_state_t state = {.look_count = UINT_MAX}; /* Sleep at once. */
    for (;;) {
        const size_t index = find_mailbox(meeting->host->arena, device_id);
        *out_index = (uint16_t)index;
        if (index != SIZE_MAX) return TOW_OK;
        TOW_RETURN_IF_ERROR(check_abort(meeting));
        if (host_clock_ns() - start_ns > TOW_HOST_ABSENCE_NS) break;
        if (!pause_awake(meeting, &state)) sleep_on(meeting, NULL, 0);
    }
    char reason[160];
    snprintf(reason, sizeof(reason),
             "device %lld is not on this host: it did not join the arena "
             "within %.1f s",
             (long long)device_id, TOW_HOST_ABSENCE_NS * 1e-9);
    return fail_run(meeting, TOW_UNAVAILABLE, reason);
}

tow_status_t meeting_begin(meeting_t *meeting)
{
    const tow_xla_collective_t *collective = meeting->collective;
    meeting->key = key_of(collective);
    meeting->abort_count = UINT64_MAX; /* Look through them once. */
    TOW_RETURN_IF_ERROR(check_abort(meeting));
    for (size_t i = 0; i < collective->member_count; i++)
        TOW_RETURN_IF_ERROR(
            await_mailbox(meeting, collective->members[i], &meeting->boxes[i]));
    return TOW_OK;
}

/* -- All of a gang ---------------------------------------------------------- */

static bool has_published(const mailbox_t *box, uint64_t key)
{
    return atomic_load(&box->halves[0].key) == key ||
           atomic_load(&box->halves[1].key) == key;
}

/* The first member, from `rank` on, that has not published yet; or their
 * number. What was published stays: we are among its readers. */
static size_t first_missing(const meeting_t *meeting, size_t rank, uint64_t key)
{
    while (rank < meeting->collective->member_count &&
           has_published(meeting_box(meeting, rank), key))
        rank++;
    return rank;
}

static gang_bell_t *gang_bell(const meeting_t *meeting, uint64_t key)
{
    return &meeting->host->arena->bells[key / 2 % TOW_HOST_BELL_COUNT];
}

/* After we have published. Of those who come last, at least one sees all; and it
 * sees whoever sleeps, for they count themselves before they look again. */
static void ring_if_complete(const meeting_t *meeting, uint64_t key)
{
    gang_bell_t *bell = gang_bell(meeting, key);
    if (atomic_load(&bell->waiter_count) == 0 ||
        first_missing(meeting, 0, key) < meeting->collective->member_count)
        return;
    atomic_fetch_add(&bell->count, 1);
    futex_wake_all(&bell->count);
}

/* Sleeps until the gang is complete, for a while. */
static void sleep_for_gang(const meeting_t *meeting, size_t rank, uint64_t key)
{
    gang_bell_t *bell = gang_bell(meeting, key);
    const uint32_t heard = atomic_load(&bell->count);
    atomic_fetch_add(&bell->waiter_count, 1);
    if (first_missing(meeting, rank, key) < meeting->collective->member_count)
        sleep_on(meeting, &bell->count, heard);
    atomic_fetch_sub(&bell->waiter_count, 1);
}

static void note_missing(const meeting_t *meeting, size_t rank, uint64_t key,
                         wait_state_t *state)
{
    const tow_xla_collective_t *collective = meeting->collective;
    tow_host_wait_t wait = {0};
    while ((rank = first_missing(meeting, rank, key)) <
               collective->member_count &&
           wait.missing_count < TOW_HOST_MISSING_MAX)
        wait.missing[wait.missing_count++] = collective->members[rank++];
    note(meeting, &wait, state);
}

static tow_status_t await_all(meeting_t *meeting, uint64_t key,
                              wait_state_t *state)
{
    for (size_t rank = 0;;) {
        const size_t missing = first_missing(meeting, rank, key);
        if (missing == meeting->collective->member_count) return TOW_OK;
        if (missing != rank) state->heartbeat_ns = 0; /* Another's life. */
        rank = missing;
        TOW_RETURN_IF_ERROR(check_abort(meeting));
        if (pause_awake(meeting, state)) continue;
        sleep_for_gang(meeting, rank, key);
        TOW_RETURN_IF_ERROR(check_life(meeting, rank, state));
        if (TOW_UNLIKELY(tow_host_wait_is_long(&state->watch)))
            note_missing(meeting, rank, key, state);
    }
}

tow_status_t mail_await_all(meeting_t *meeting, uint64_t step)
{
    wait_state_t state = {0};
    tow_status_t status = await_all(meeting, step_key(meeting, step), &state);
    stop_waiting(meeting, &state);
    return status;
}

/* -- Putting ---------------------------------------------------------------- */

static uint32_t readers_left(uint64_t ticket)
{
    return (uint32_t)(ticket & 0xffff);
}

static bool is_aborted(const tow_host_t *host, uint64_t run_id)
{
    tow_status_t aborted = host_abort_of(host, run_id);
    const bool is = aborted != TOW_OK;
    tow_status_ignore(aborted, "only whether it was aborted matters");
    return is;
}

/* Has a process gone since the bytes were put there? */
static bool has_lost_any(const tow_host_t *host, const mail_half_t *half)
{
    return atomic_load(&host->arena->left_count) != half->left_count ||
           host_any_is_dead(host);
}

/* Nobody came: should they ever, they hear of it. */
static void forsake(const meeting_t *meeting, const mail_half_t *half)
{
    const tow_xla_collective_t *collective = meeting->collective;
    char reason[200];
    snprintf(reason, sizeof(reason),
             "what device %lld sent in gang run %llu was not taken within "
             "%.0f s; it has gone on with run %llu",
             (long long)collective->members[collective->rank],
             (unsigned long long)half->run_id, TOW_HOST_UNREAD_NS * 1e-9,
             (unsigned long long)collective->run_id);
    tow_host_abort(meeting->host, half->run_id, TOW_DEADLINE_EXCEEDED, reason);
}

/* Readers of our own run come, or it is aborted, which we look for anyhow. Those
 * of an earlier one may never come: then the half is ours again, and the new
 * version tells them if they do. */
static bool may_replace(const meeting_t *meeting, const mail_half_t *half,
                        int64_t waited_ns)
{
    const tow_host_t *host = meeting->host;
    if (half->run_id == meeting->collective->run_id) return false;
    if (is_aborted(host, half->run_id)) return true;
    if (waited_ns > host->patience_ns && has_lost_any(host, half)) return true;
    if (waited_ns <= TOW_HOST_UNREAD_NS) return false;
    forsake(meeting, half);
    return true;
}

/* One pause between two looks for readers that are late. True after one long
 * enough to ask why. */
static bool pause_for_readers(const meeting_t *meeting, unsigned count,
                              wait_state_t *state)
{
    const bool is_long =
        state->watch.since_ns != 0 &&
        host_clock_ns() - state->watch.since_ns > TOW_HOST_READERS_AWAKE_NS;
    if (meeting->collective->turns != NULL || is_long) {
        if (!is_long && pause_awake(meeting, state)) return false;
        sleep_on(meeting, NULL, 0);
        return true;
    }
    if (count >= TOW_HOST_SPIN_COUNT)
        sched_yield();
    else
        host_relax();
    return count >= TOW_HOST_SPIN_COUNT && count % 64 == 0;
}

static tow_status_t await_readers(meeting_t *meeting, const mail_half_t *half,
                                  wait_state_t *state)
{
    for (unsigned count = 0;; count++) {
        if (readers_left(
                atomic_load_explicit(&half->ticket, memory_order_acquire)) == 0)
            return TOW_OK;
        TOW_RETURN_IF_ERROR(check_abort(meeting));
        if (!pause_for_readers(meeting, count, state)) continue;
        /* Of several it is not written there who they are. */
        if (tow_host_wait_is_long(&state->watch))
            note(meeting,
                 &(tow_host_wait_t){.missing_count = half->only_reader >= 0,
                                    .missing = {half->only_reader}},
                 state);
        if (may_replace(meeting, half, host_clock_ns() - state->watch.since_ns))
            return TOW_OK;
    }
}

tow_status_t mail_prepare(meeting_t *meeting, uint8_t **out_stage)
{
    mailbox_t *box = meeting_box(meeting, meeting->collective->rank);
    box->last_half ^= 1;
    mail_half_t *half = &box->halves[box->last_half];
    wait_state_t state = {0};
    tow_status_t status = await_readers(meeting, half, &state);
    stop_waiting(meeting, &state);
    if (status != TOW_OK) return status;
    atomic_store_explicit(&half->key, 0, memory_order_relaxed);
    *out_stage = box->stage[box->last_half];
    return TOW_OK;
}

void mail_publish(meeting_t *meeting, uint64_t step, mail_readers_t readers)
{
    mailbox_t *box = meeting_box(meeting, meeting->collective->rank);
    mail_half_t *half = &box->halves[box->last_half];
    const uint64_t version =
        (atomic_load_explicit(&half->ticket, memory_order_relaxed) >> 16) + 1;
    const uint64_t key = step_key(meeting, step);
    TOW_ASSERT(readers.count <= 0xffff);
    half->only_reader = readers.only;
    half->run_id = meeting->collective->run_id;
    half->left_count = atomic_load_explicit(&meeting->host->arena->left_count,
                                            memory_order_relaxed);
    atomic_store_explicit(&half->ticket, version << 16 | readers.count,
                          memory_order_relaxed);
    atomic_store_explicit(&half->key, key, memory_order_release);
    atomic_fetch_add(&box->bell, 1); /* A fence, too, before we look. */
    if (atomic_load(&box->waiter_count) != 0) futex_wake_all(&box->bell);
    ring_if_complete(meeting, key);
}

/* -- Taking ----------------------------------------------------------------- */

static bool take_if_there(mailbox_t *box, uint64_t key, letter_t *out_letter)
{
    for (unsigned i = 0; i < 2; i++) {
        mail_half_t *half = &box->halves[i];
        if (atomic_load_explicit(&half->key, memory_order_acquire) != key)
            continue;
        *out_letter = (letter_t){.half = half,
                                 .bytes = box->stage[i],
                                 .ticket = atomic_load_explicit(
                                     &half->ticket, memory_order_relaxed)};
        return true;
    }
    return false;
}

tow_status_t mail_fetch(meeting_t *meeting, size_t rank, uint64_t step,
                        letter_t *out_letter)
{
    mailbox_t *box = meeting_box(meeting, rank);
    const uint64_t key = step_key(meeting, step);
    wait_state_t state = {0};
    tow_status_t status = TOW_OK;
    while (status == TOW_OK) {
        const uint32_t heard =
            atomic_load_explicit(&box->bell, memory_order_acquire);
        if (take_if_there(box, key, out_letter)) break;
        status = pause_for(meeting, rank, heard, &state);
    }
    stop_waiting(meeting, &state);
    return status;
}

tow_status_t mail_release(meeting_t *meeting, size_t rank,
                          const letter_t *letter)
{
    uint64_t ticket =
        atomic_load_explicit(&letter->half->ticket, memory_order_relaxed);
    for (;;) {
        if (ticket >> 16 != letter->ticket >> 16) {
            TOW_RETURN_IF_ERROR(
                host_abort_of(meeting->host, meeting->collective->run_id));
            return TOW_ERROR(TOW_ABORTED,
                             "device %lld went on without us after an abort",
                             (long long)meeting->collective->members[rank]);
        }
        TOW_ASSERT(readers_left(ticket) > 0);
        if (atomic_compare_exchange_weak_explicit(
                &letter->half->ticket, &ticket, ticket - 1,
                memory_order_acq_rel, memory_order_relaxed))
            return TOW_OK;
    }
}
