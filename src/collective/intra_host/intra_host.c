/* Joining and leaving the arena, the heartbeat, and aborts. */
#include "collective/intra_host/intra_host.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "collective/intra_host/intra_host_impl.h"

int64_t intra_host_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The pid of a row that is being claimed: neither free nor dead. */
#define PID_CLAIMING (-1)

/* -- Claiming rows of the arena -------------------------------------------- */

static bool pid_is_dead(int32_t pid)
{
    return pid == 0 || (pid > 0 && kill(pid, 0) != 0 && errno == ESRCH);
}

bool intra_host_any_is_dead(const tow_intra_host_t *host)
{
    for (size_t i = 0; i < TOW_INTRA_HOST_PROCESS_COUNT_MAX; i++) {
        const int32_t pid = atomic_load(&host->arena->processes[i].pid);
        if (pid > 0 && pid_is_dead(pid)) return true;
    }
    return false;
}

static bool process_is_dead(const arena_t *arena, uint32_t process)
{
    return pid_is_dead(atomic_load(&arena->processes[process].pid));
}

static void release_devices(tow_intra_host_t *host)
{
    for (size_t i = 0; i < TOW_INTRA_HOST_DEVICE_COUNT_MAX; i++) {
        owner_row_t *row = &host->arena->owners[i];
        if (atomic_load(&row->device_plus_one) != 0 &&
            atomic_load(&row->process) == host->process)
            atomic_store(&row->device_plus_one, 0);
    }
}

/* A row of a dead process may be claimed; its devices are released first. */
static bool claim_process_row(tow_intra_host_t *host, uint32_t index)
{
    process_row_t *row = &host->arena->processes[index];
    int32_t old = atomic_load(&row->pid);
    if (!pid_is_dead(old) ||
        !atomic_compare_exchange_strong(&row->pid, &old, PID_CLAIMING))
        return false;
    host->process = index;
    release_devices(host);
    if (old != 0) atomic_fetch_add(&host->arena->departed_count, 1);
    atomic_store(&row->pid, getpid());
    return true;
}

static tow_status_t claim_process(tow_intra_host_t *host)
{
    for (uint32_t i = 0; i < TOW_INTRA_HOST_PROCESS_COUNT_MAX; i++)
        if (claim_process_row(host, i)) return TOW_OK;
    return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                     "the arena is full: it has %d processes, the limit",
                     TOW_INTRA_HOST_PROCESS_COUNT_MAX);
}

static void reset_mailbox(mailbox_t *box)
{
    for (int i = 0; i < 2; i++) {
        uint64_t ticket = atomic_load(&box->halves[i].ticket);
        atomic_store(&box->halves[i].key, 0);
        /* The next version, without readers. */
        atomic_store(&box->halves[i].ticket, (ticket | 0xffff) + 1);
    }
}

/* The mailbox must be free, or that of a dead process. */
static bool claim_mailbox(tow_intra_host_t *host, size_t index,
                          int64_t device_id)
{
    owner_row_t *row = &host->arena->owners[index];
    int64_t old = atomic_load(&row->device_plus_one);
    if (old != 0 && !process_is_dead(host->arena, atomic_load(&row->process)))
        return false;
    /* Claimed with an id that no member searches for, until it is ready. */
    if (!atomic_compare_exchange_strong(&row->device_plus_one, &old, -1))
        return false;
    atomic_store(&row->process, host->process);
    reset_mailbox(&host->arena->mailboxes[index]);
    atomic_store(&row->device_plus_one, device_id + 1);
    return true;
}

static tow_status_t claim_device(tow_intra_host_t *host, int64_t device_id)
{
    if (device_id < 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "device id %lld is negative",
                         (long long)device_id);
    for (size_t i = 0; i < TOW_INTRA_HOST_DEVICE_COUNT_MAX; i++) {
        const owner_row_t *row = &host->arena->owners[i];
        if (atomic_load(&row->device_plus_one) == device_id + 1 &&
            !process_is_dead(host->arena, atomic_load(&row->process)))
            return TOW_ERROR(
                TOW_ALREADY_EXISTS,
                "device %lld belongs to another process (pid %d)",
                (long long)device_id,
                atomic_load(
                    &host->arena->processes[atomic_load(&row->process)].pid));
    }
    for (size_t i = 0; i < TOW_INTRA_HOST_DEVICE_COUNT_MAX; i++)
        if (claim_mailbox(host, i, device_id)) return TOW_OK;
    return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                     "the arena is full: it has %d devices, the limit",
                     TOW_INTRA_HOST_DEVICE_COUNT_MAX);
}

/* -- Heartbeat ------------------------------------------------------------- */

static void beat(tow_intra_host_t *host)
{
    atomic_fetch_add(&host->arena->processes[host->process].heartbeat, 1);
}

static void *heartbeat_main(void *argument)
{
    tow_intra_host_t *host = argument;
    pthread_mutex_lock(&host->heartbeat_lock);
    while (!host->heartbeat_must_stop) {
        beat(host);
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += TOW_INTRA_HOST_HEARTBEAT_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&host->heartbeat_stop, &host->heartbeat_lock,
                               &until);
    }
    pthread_mutex_unlock(&host->heartbeat_lock);
    return NULL;
}

static tow_status_t start_heartbeat(tow_intra_host_t *host)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&host->heartbeat_lock, NULL);
    pthread_cond_init(&host->heartbeat_stop, &attributes);
    pthread_condattr_destroy(&attributes);
    beat(host);
    int error =
        pthread_create(&host->heartbeat_thread, NULL, heartbeat_main, host);
    if (error != 0) return TOW_ERRNO(error, "starting the heartbeat thread");
    host->heartbeat_runs = true;
    return TOW_OK;
}

static void stop_heartbeat(tow_intra_host_t *host)
{
    if (!host->heartbeat_runs) return;
    pthread_mutex_lock(&host->heartbeat_lock);
    host->heartbeat_must_stop = true;
    pthread_cond_signal(&host->heartbeat_stop);
    pthread_mutex_unlock(&host->heartbeat_lock);
    pthread_join(host->heartbeat_thread, NULL);
}

/* -- Invariants ------------------------------------------------------------ */

static void check_waits(const tow_intra_host_t *host)
{
    for (size_t i = 0; i < TOW_COUNT_OF(host->waits); i++) {
        const tow_intra_host_wait_t *wait = &host->waits[i];
        if (wait->since_ns == 0) continue;
        TOW_ASSERT(wait->since_ns > 0 && wait->device >= 0);
        TOW_ASSERT(wait->missing_count <= TOW_INTRA_HOST_MISSING_MAX);
        for (size_t k = 0; k < i; k++)
            TOW_ASSERT(host->waits[k].since_ns == 0 ||
                       host->waits[k].device != wait->device);
    }
}

void intra_host_check(tow_intra_host_t *host)
{
    TOW_ASSERT(host->arena != NULL && host->heartbeat_runs);
    TOW_ASSERT(host->heartbeat_timeout_ns > 0 && host->core_count > 0);
    TOW_ASSERT(host->process < TOW_INTRA_HOST_PROCESS_COUNT_MAX);
    pthread_mutex_lock(&host->wait_lock);
    check_waits(host);
    pthread_mutex_unlock(&host->wait_lock);
}

/* -- Opening and closing --------------------------------------------------- */

static tow_status_t join(tow_intra_host_t *host,
                         const tow_intra_host_options_t *options)
{
    TOW_RETURN_IF_ERROR(arena_open(options->arena, &host->arena));
    uint64_t none = 0;
    (void)atomic_compare_exchange_strong(&host->arena->memory, &none,
                                         options->random != 0 ? options->random
                                                              : 1);
    TOW_RETURN_IF_ERROR(claim_process(host));
    TOW_RETURN_IF_ERROR(start_heartbeat(host));
    for (size_t i = 0; i < options->device_count; i++)
        TOW_RETURN_IF_ERROR(claim_device(host, options->device_ids[i]));
    return TOW_OK;
}

tow_status_t tow_intra_host_open(const tow_intra_host_options_t *options,
                                 tow_intra_host_t **out_host)
{
    *out_host = NULL;
    tow_intra_host_t *host = tow_calloc(1, sizeof(*host));
    if (host == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    host->process = UINT32_MAX;
    pthread_mutex_init(&host->wait_lock, NULL);
    host->core_count = (size_t)sysconf(_SC_NPROCESSORS_ONLN);
    host->heartbeat_timeout_ns = options->heartbeat_timeout_ns != 0
                                     ? options->heartbeat_timeout_ns
                                     : TOW_INTRA_HOST_HEARTBEAT_TIMEOUT_NS;
    tow_status_t status = join(host, options);
    if (status != TOW_OK) {
        tow_intra_host_close(host);
        return tow_status_annotate(status, "joining the arena %s",
                                   options->arena);
    }
    intra_host_check(host);
    *out_host = host;
    return TOW_OK;
}

uint64_t tow_intra_host_memory(const tow_intra_host_t *host)
{
    return atomic_load(&host->arena->memory);
}

void tow_intra_host_close(tow_intra_host_t *host)
{
    if (host == NULL) return;
    stop_heartbeat(host);
    if (host->process != UINT32_MAX) {
        release_devices(host);
        atomic_fetch_add(&host->arena->departed_count, 1);
        atomic_store(&host->arena->processes[host->process].pid, 0);
    }
    arena_close(host->arena);
    tow_free(host);
}

/* -- Aborts ---------------------------------------------------------------- */

void tow_intra_host_abort(tow_intra_host_t *host, uint64_t run_id,
                          tow_code_t code, const char *reason)
{
    TOW_ASSERT(code != TOW_CODE_OK);
    arena_t *arena = host->arena;
    uint64_t index = atomic_fetch_add(&arena->abort_count, 1);
    abort_row_t *row = &arena->aborts[index % TOW_INTRA_HOST_ABORT_COUNT];
    _Atomic uint64_t *run = &arena->aborted[index % TOW_INTRA_HOST_ABORT_COUNT];
    atomic_store(run, 0);
    row->code = (int32_t)code;
    snprintf(row->reason, sizeof(row->reason), "%s", reason);
    atomic_store(run, run_id + 1);
    /* Counted again, so that a member that searched in between searches again.
     */
    atomic_fetch_add(&arena->abort_count, TOW_INTRA_HOST_ABORT_COUNT);
}

tow_status_t intra_host_abort_of(const tow_intra_host_t *host, uint64_t run_id)
{
    for (size_t i = 0; i < TOW_INTRA_HOST_ABORT_COUNT; i++) {
        const abort_row_t *row = &host->arena->aborts[i];
        if (atomic_load(&host->arena->aborted[i]) != run_id + 1) continue;
        return TOW_ERROR((tow_code_t)row->code, "%.*s",
                         (int)sizeof(row->reason) - 1, row->reason);
    }
    return TOW_OK;
}

tow_status_t tow_intra_host_check(const tow_intra_host_t *host, uint64_t run_id)
{
    return intra_host_abort_of(host, run_id);
}
