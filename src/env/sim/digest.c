#include "env/sim/digest_impl.h"

#include <inttypes.h>

#include "base/assert.h"

static const char *const event_names[EVENT_KIND_COUNT] = {
    [EVENT_START] = "start",
    [EVENT_TIMER] = "timer",
    [EVENT_POST] = "post",
    [EVENT_CLOSED] = "closed",
    [EVENT_WORK] = "work",
    [EVENT_ACCEPT] = "accept",
    [EVENT_UP] = "up",
    [EVENT_MESSAGE] = "message",
    [EVENT_WRITABLE] = "writable",
    [EVENT_DOWN] = "down",
    [EVENT_DATAGRAM] = "datagram",
    [EVENT_ARRIVED] = "arrived",
    [EVENT_WRITTEN] = "written",
    [EVENT_LANE_DOWN] = "lane_down",
    [EVENT_LANE_WRITABLE] = "lane_writable",
    [EVENT_LOST] = "lost",
    [EVENT_CRASH] = "crash",
    [EVENT_RESTART] = "restart",
    [EVENT_PAUSE] = "pause",
    [EVENT_RESUME] = "resume",
    [EVENT_CUT] = "cut",
    [EVENT_HEAL] = "heal",
    [EVENT_PATH] = "path",
    [EVENT_CALL] = "call",
};

static void log_node(FILE *log, const char *name, uint32_t node)
{
    if (node != EVENT_NO_NODE) fprintf(log, " %s %" PRIu32, name, node);
}

void tow_sim_digest_log(const tow_sim_digest_t *digest,
                        const tow_sim_event_t *event)
{
    TOW_ASSERT(event->kind > 0 && event->kind < EVENT_KIND_COUNT);
    FILE *log = digest->log;
    fprintf(log, "%" PRId64 " %s", event->time_ns, event_names[event->kind]);
    log_node(log, "node", event->node);
    log_node(log, "peer", event->peer);
    fprintf(log,
            " type %" PRIu32 " size %" PRIu64 " content %016" PRIx64
            " digest %016" PRIx64 "\n",
            event->type, event->size, event->content, digest->value);
}
