/* Who has waited for long, and for whom: told to whoever asks why a gang stands
 * still. Nothing is noted of waits that are short, so collectives that go well pay
 * nothing for it. */
#include "base/assert.h"
#include "collective/host/host_impl.h"

/* Under the lock: the device's row, or one that is free; NULL: all are taken. */
static tow_host_wait_t *row_of(tow_host_t *host, int64_t device)
{
    tow_host_wait_t *unused = NULL;
    for (size_t i = 0; i < TOW_COUNT_OF(host->waits); i++) {
        tow_host_wait_t *row = &host->waits[i];
        if (row->since_ns == 0)
            unused = unused == NULL ? row : unused;
        else if (row->device == device)
            return row;
    }
    return unused;
}

bool tow_host_wait_is_long(tow_host_watch_t *watch)
{
    const int64_t now_ns = host_clock_ns();
    if (watch->since_ns == 0) watch->since_ns = now_ns;
    const int64_t last_ns =
        watch->noted_ns != 0 ? watch->noted_ns : watch->since_ns;
    return now_ns - last_ns >= TOW_HOST_LONG_WAIT_NS;
}

void tow_host_wait_note(tow_host_t *host, tow_host_watch_t *watch,
                        const tow_host_wait_t *wait)
{
    TOW_ASSERT(watch->since_ns > 0);
    TOW_ASSERT(wait->missing_count <= TOW_HOST_MISSING_MAX);
    watch->noted_ns = host_clock_ns();
    pthread_mutex_lock(&host->wait_lock);
    tow_host_wait_t *row = row_of(host, wait->device);
    if (row != NULL) {
        *row = *wait;
        row->since_ns = watch->since_ns;
    }
    pthread_mutex_unlock(&host->wait_lock);
}

void tow_host_wait_forget(tow_host_t *host, int64_t device)
{
    pthread_mutex_lock(&host->wait_lock);
    tow_host_wait_t *row = row_of(host, device);
    if (row != NULL) row->since_ns = 0;
    pthread_mutex_unlock(&host->wait_lock);
}

size_t tow_host_waits(tow_host_t *host, tow_host_wait_t *waits, size_t capacity,
                      int64_t *out_now_ns)
{
    size_t count = 0;
    *out_now_ns = host_clock_ns();
    pthread_mutex_lock(&host->wait_lock);
    for (size_t i = 0; i < TOW_COUNT_OF(host->waits) && count < capacity; i++)
        if (host->waits[i].since_ns != 0) waits[count++] = host->waits[i];
    pthread_mutex_unlock(&host->wait_lock);
    return count;
}
