/* The members of a gang by host, and their leaders. */
#include <inttypes.h>
#include <time.h> /* tow-allow: waits for peers that are about to be added */

#include "base/alloc.h"
#include "base/hash.h"
#include "collective/multi_host/multi_host_impl.h"

static void lock(tow_multi_host_t *span)
{
    pthread_mutex_lock(&span->lock); /* tow-allow: the face */
}

static void unlock(tow_multi_host_t *span)
{
    pthread_mutex_unlock(&span->lock);
}

static uint32_t process_of(int64_t device)
{
    return (uint32_t)(device / TOW_XLA_PROCESS_STRIDE);
}

/* False when the process has not been added. Under the lock. */
static bool find_host(tow_multi_host_t *span, uint32_t process,
                      uint64_t *out_host_id, tow_status_t *out_gone)
{
    *out_gone = TOW_OK;
    *out_host_id = span->options.host_id;
    if (process == span->options.process_id) return true;
    const place_t *place = tow_map_find(&span->places, (uint64_t)process + 1);
    if (place == NULL) return false;
    *out_host_id = place->host_id;
    *out_gone = tow_status_retain(place->gone);
    return true;
}

static void pause_a_little(void)
{
    struct timespec nap = {.tv_nsec = TOW_MULTI_HOST_SLEEP_NS};
    nanosleep(&nap, NULL); /* tow-allow: the caller is a thread of XLA's */
}

/* A gang may start before the control plane has announced all its processes. */
static tow_status_t find_or_await(tow_multi_host_t *span, uint64_t run_id,
                                  int64_t device, uint64_t *out_host_id,
                                  tow_intra_host_wait_timer_t *timer)
{
    const uint32_t process = process_of(device);
    for (int64_t waited_ns = 0;; waited_ns += TOW_MULTI_HOST_SLEEP_NS) {
        tow_status_t gone;
        lock(span);
        const bool is_known = find_host(span, process, out_host_id, &gone);
        unlock(span);
        if (is_known) return gone;
        TOW_RETURN_IF_ERROR(tow_intra_host_check(span->options.host, run_id));
        if (waited_ns >= TOW_MULTI_HOST_ABSENCE_NS) break;
        tow_intra_host_wait_begin(timer);
        pause_a_little();
    }
    return TOW_ERROR(TOW_UNAVAILABLE,
                     "device %" PRId64 " is nowhere: its process %" PRIu32
                     " was not added within %.1f s",
                     device, process, (double)TOW_MULTI_HOST_ABSENCE_NS * 1e-9);
}

static tow_status_t await_host(tow_multi_host_t *span,
                               const tow_xla_collective_t *collective,
                               int64_t device, uint64_t *out_host_id)
{
    tow_intra_host_wait_timer_t timer = {0};
    tow_status_t status =
        find_or_await(span, collective->run_id, device, out_host_id, &timer);
    tow_intra_host_wait_end(span->options.host, &timer, collective);
    return status;
}

static size_t find_or_add_host(gang_t *gang, uint64_t host_id, int64_t leader)
{
    size_t i = 0;
    while (i < gang->host_count && gang->hosts[i].host_id != host_id)
        i++;
    if (i < gang->host_count) return i;
    gang->hosts[gang->host_count++] = (gang_host_t){
        .host_id = host_id, .process = process_of(leader), .leader = leader};
    return i;
}

/* Counts members by host; `host_of` gets the host of each rank. */
static tow_status_t find_hosts(tow_multi_host_t *span,
                               const tow_xla_collective_t *collective,
                               gang_t *gang, size_t *host_of)
{
    const int64_t *members = collective->members;
    for (size_t rank = 0; rank < gang->member_count; rank++) {
        if (members[rank] < 0)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "device id %" PRId64 " is negative",
                             members[rank]);
        if (rank > 0 &&
            process_of(members[rank]) == process_of(members[rank - 1])) {
            host_of[rank] = host_of[rank - 1];
        } else {
            uint64_t host_id;
            TOW_RETURN_IF_ERROR(
                await_host(span, collective, members[rank], &host_id));
            host_of[rank] = find_or_add_host(gang, host_id, members[rank]);
        }
        gang->hosts[host_of[rank]].count++;
    }
    return TOW_OK;
}

static void sort_members(const tow_xla_collective_t *collective, gang_t *gang,
                         const size_t *host_of)
{
    size_t first = 0;
    for (size_t i = 0; i < gang->host_count; i++) {
        gang_host_t *host = &gang->hosts[i];
        host->first = first;
        first += host->count;
        if (host->count > gang->local_max) gang->local_max = host->count;
        host->count = 0; /* Counted again below. */
    }
    gang->here = host_of[collective->rank];
    for (size_t rank = 0; rank < gang->member_count; rank++) {
        gang_host_t *host = &gang->hosts[host_of[rank]];
        if (rank == collective->rank) gang->place = host->count;
        if (host_of[rank] == gang->here)
            gang->locals[host->count] = collective->members[rank];
        gang->order[host->first + host->count++] = rank;
    }
}

static void add_process(tow_multi_host_t *span, gang_t *gang, uint32_t process)
{
    if (process == span->options.process_id) return;
    for (size_t i = 0; i < gang->process_count; i++)
        if (gang->processes[i] == process) return;
    gang->processes[gang->process_count++] = process;
}

/* Finds or creates it. Under the lock. */
static backlog_t *find_backlog(tow_multi_host_t *span, size_t device,
                               uint32_t process)
{
    const uint64_t key =
        ((uint64_t)process + 1) * TOW_XLA_DEVICE_COUNT_MAX + device;
    backlog_t *backlog = tow_map_find(&span->backlogs, key);
    if (backlog != NULL) return backlog;
    backlog = tow_calloc(1, sizeof(*backlog));
    if (backlog == NULL || tow_map_put(&span->backlogs, key, backlog))
        return backlog;
    tow_free(backlog);
    return NULL;
}

static tow_status_t find_backlogs(tow_multi_host_t *span,
                                  const tow_xla_collective_t *collective,
                                  gang_t *gang)
{
    const size_t device = (size_t)(collective->members[collective->rank] %
                                   TOW_XLA_PROCESS_STRIDE);
    bool has_all = true;
    lock(span);
    for (size_t i = 0; i < gang->host_count; i++) {
        gang_host_t *host = &gang->hosts[i];
        host->backlog = find_backlog(span, device, host->process);
        has_all = has_all && host->backlog != NULL;
    }
    unlock(span);
    return has_all ? TOW_OK : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

static void list_processes(tow_multi_host_t *span,
                           const tow_xla_collective_t *collective, gang_t *gang)
{
    for (size_t i = 0; i < gang->host_count; i++)
        if (i != gang->here) add_process(span, gang, gang->hosts[i].process);
    gang->partner_count = gang->process_count;
    uint32_t last = UINT32_MAX;
    for (size_t i = 0; i < gang->member_count; i++) {
        const uint32_t process = process_of(collective->members[i]);
        if (process != last) add_process(span, gang, process);
        last = process;
    }
}

/* -- Cache ---------------------------------------------------------- */

static void free_gang(gang_t *gang)
{
    tow_free(gang->hosts);
    tow_free(gang->order);
    tow_free(gang->locals);
    tow_free(gang->processes);
    tow_free(gang);
}

/* Under the lock. */
static void let_go(gang_t *gang)
{
    if (gang != NULL && --gang->holder_count == 0) free_gang(gang);
}

static gang_t *find_gang(tow_multi_host_t *span, const gang_t *wanted)
{
    gang_t *found = NULL;
    lock(span);
    for (size_t i = 0; i < TOW_MULTI_HOST_GANG_COUNT && found == NULL; i++) {
        gang_t *gang = span->gangs[i];
        if (gang == NULL || gang->members != wanted->members ||
            gang->member_count != wanted->member_count ||
            gang->rank != wanted->rank ||
            gang->change_count != span->change_count)
            continue;
        gang->holder_count++;
        gang->last_use = ++span->gang_use_count;
        found = gang;
    }
    unlock(span);
    return found;
}

/* Replaces the least recently used one. */
static void keep_gang(tow_multi_host_t *span, gang_t *gang)
{
    lock(span);
    size_t oldest = 0;
    for (size_t i = 0; i < TOW_MULTI_HOST_GANG_COUNT; i++) {
        if (span->gangs[i] == NULL) {
            oldest = i;
            break;
        }
        if (span->gangs[i]->last_use < span->gangs[oldest]->last_use)
            oldest = i;
    }
    let_go(span->gangs[oldest]);
    span->gangs[oldest] = gang;
    gang->holder_count++;
    gang->last_use = ++span->gang_use_count;
    unlock(span);
}

static tow_status_t fill_gang(tow_multi_host_t *span,
                              const tow_xla_collective_t *collective,
                              gang_t *gang)
{
    const size_t count = collective->member_count;
    gang->hosts = tow_calloc(count, sizeof(*gang->hosts));
    gang->order = tow_calloc(count, sizeof(*gang->order));
    gang->locals = tow_calloc(count, sizeof(*gang->locals));
    gang->processes = tow_calloc(count, sizeof(*gang->processes));
    size_t *host_of = tow_calloc(count, sizeof(*host_of));
    tow_status_t status = TOW_OK;
    if (gang->hosts == NULL || gang->order == NULL || gang->locals == NULL ||
        gang->processes == NULL || host_of == NULL)
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    else
        status = find_hosts(span, collective, gang, host_of);
    if (status == TOW_OK) {
        sort_members(collective, gang, host_of);
        /* Only leaders communicate with other processes. */
        if (gang_leads(gang)) {
            list_processes(span, collective, gang);
            status = find_backlogs(span, collective, gang);
        }
    }
    tow_free(host_of);
    return status;
}

tow_status_t gang_open(tow_multi_host_t *span,
                       const tow_xla_collective_t *collective,
                       gang_t **out_gang)
{
    const size_t count = collective->member_count;
    gang_t wanted = {
        .member_count = count,
        .members = tow_hash_bytes(collective->members,
                                  count * sizeof(*collective->members), 0),
        .rank = collective->rank,
        .holder_count = 1};
    *out_gang = find_gang(span, &wanted);
    if (*out_gang != NULL) return TOW_OK;
    gang_t *gang = tow_malloc(sizeof(*gang));
    if (gang == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    lock(span);
    wanted.change_count = span->change_count;
    unlock(span);
    *gang = wanted;
    tow_status_t status = fill_gang(span, collective, gang);
    if (status != TOW_OK) {
        free_gang(gang);
        return status;
    }
    keep_gang(span, gang);
    *out_gang = gang;
    return TOW_OK;
}

void gang_close(tow_multi_host_t *span, gang_t *gang)
{
    lock(span);
    let_go(gang);
    unlock(span);
}

void gang_forget_all(tow_multi_host_t *span)
{
    for (size_t i = 0; i < TOW_MULTI_HOST_GANG_COUNT; i++)
        let_go(span->gangs[i]);
}
