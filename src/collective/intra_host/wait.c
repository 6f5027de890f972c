/* Records of long waits, by which a worker reports which devices stall a gang.
 * Short waits are not recorded, so successful collectives pay nothing. */
#include "base/assert.h"
#include "collective/intra_host/intra_host_impl.h"

/* Under the lock: the device's row, or a free one; NULL if all are used. */
static tow_intra_host_wait_t *row_of(tow_intra_host_t *host, int64_t device)
{
    tow_intra_host_wait_t *unused = NULL;
    for (size_t i = 0; i < TOW_COUNT_OF(host->waits); i++) {
        tow_intra_host_wait_t *row = &host->waits[i];
        if (row->since_ns == 0)
            unused = unused == NULL ? row : unused;
        else if (row->device == device)
            return row;
    }
    return unused;
}

void tow_intra_host_wait_begin(tow_intra_host_wait_timer_t *timer)
{
    if (timer->begun_ns == 0) timer->begun_ns = intra_host_clock_ns();
}

void tow_intra_host_wait_count(const tow_intra_host_wait_timer_t *timer,
                               const tow_xla_collective_t *collective)
{
    if (collective->wait_ns == NULL) return;
    const int64_t waited_ns = intra_host_clock_ns() - timer->begun_ns;
    if (waited_ns > 0) *collective->wait_ns += (uint64_t)waited_ns;
}

bool tow_intra_host_wait_is_long(tow_intra_host_wait_timer_t *timer)
{
    const int64_t now_ns = intra_host_clock_ns();
    if (timer->since_ns == 0) timer->since_ns = now_ns;
    const int64_t last_ns =
        timer->reported_ns != 0 ? timer->reported_ns : timer->since_ns;
    return now_ns - last_ns >= TOW_INTRA_HOST_LONG_WAIT_NS;
}

void tow_intra_host_wait_report(tow_intra_host_t *host,
                                tow_intra_host_wait_timer_t *timer,
                                const tow_intra_host_wait_t *wait)
{
    TOW_ASSERT(timer->since_ns > 0);
    TOW_ASSERT(wait->missing_count <= TOW_INTRA_HOST_MISSING_MAX);
    timer->reported_ns = intra_host_clock_ns();
    pthread_mutex_lock(&host->wait_lock);
    tow_intra_host_wait_t *row = row_of(host, wait->device);
    if (row != NULL) {
        *row = *wait;
        row->since_ns = timer->since_ns;
    }
    pthread_mutex_unlock(&host->wait_lock);
    intra_host_check(host);
}

void tow_intra_host_wait_clear(tow_intra_host_t *host, int64_t device)
{
    pthread_mutex_lock(&host->wait_lock);
    tow_intra_host_wait_t *row = row_of(host, device);
    if (row != NULL) row->since_ns = 0;
    pthread_mutex_unlock(&host->wait_lock);
    intra_host_check(host);
}

size_t tow_intra_host_list_waits(tow_intra_host_t *host,
                                 tow_intra_host_wait_t *waits, size_t capacity,
                                 int64_t *out_now_ns)
{
    size_t count = 0;
    *out_now_ns = intra_host_clock_ns();
    pthread_mutex_lock(&host->wait_lock);
    for (size_t i = 0; i < TOW_COUNT_OF(host->waits) && count < capacity; i++)
        if (host->waits[i].since_ns != 0) waits[count++] = host->waits[i];
    pthread_mutex_unlock(&host->wait_lock);
    return count;
}
