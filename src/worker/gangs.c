#include "worker/gangs.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/hash.h"
#include "collective/host/host.h"
#include "collective/span/span.h"
#include "worker/door_impl.h"

struct tow_gangs {
    tow_env_t *env;
    door_t door;
    char arena[TOW_GANGS_ARENA_NAME_SIZE];
    tow_host_t *host; /* owned */
    tow_span_t *span; /* owned; NULL: no data plane */
    tow_xla_collectives_t collectives;
    tow_closed_t closed;
    tow_post_t post;
};

static uint64_t hash_text(const char *text, uint64_t seed)
{
    return tow_hash_bytes(text, strlen(text), seed);
}

const char *tow_gangs_arena_name(const char *cluster, const char *host,
                                 char name[TOW_GANGS_ARENA_NAME_SIZE])
{
    snprintf(name, TOW_GANGS_ARENA_NAME_SIZE, "/towpath-%u-%016" PRIx64,
             (unsigned)geteuid(), hash_text(host, hash_text(cluster, 0)));
    return name;
}

void tow_gangs_sweep(const char *cluster, const char *host)
{
    char name[TOW_GANGS_ARENA_NAME_SIZE];
    door_sweep(tow_gangs_arena_name(cluster, host, name));
}

/* -- Hooks -------------------------------------------------------------------------- */

/* A peer without mail can be in no gang with us, unless it shares the arena. */
static void peer_added(void *context, const tow_worker_peer_t *peer)
{
    tow_gangs_t *gangs = context;
    if (gangs->span == NULL || peer->lane_address_size == 0) return;
    const tow_span_peer_t added = {
        .process_id = peer->process,
        .device_count = peer->device_count,
        .host_id = hash_text(peer->host, 0),
        .door = peer->mail,
        .lane_address = peer->lane_address,
        .lane_address_size = peer->lane_address_size,
    };
    tow_status_t status = tow_span_add_peer(gangs->span, &added);
    if (status == TOW_OK) return;
    tow_log(&gangs->env->log, TOW_LOG_ERROR, "gangs with a worker will fail",
            TOW_F_STR("worker", peer->name), TOW_F_STATUS("cause", status));
    tow_status_release(status);
}

static void peer_gone(void *context, uint32_t process, tow_status_t cause)
{
    tow_gangs_t *gangs = context;
    if (gangs->span != NULL) tow_span_remove_peer(gangs->span, process, cause);
}

static void abort_gang(void *context, uint64_t gang_id, tow_status_t cause)
{
    tow_gangs_t *gangs = context;
    const tow_code_t code = tow_status_code(cause);
    if (gangs->span != NULL)
        tow_span_abort(gangs->span, gang_id, code, tow_status_message(cause));
    else
        tow_host_abort(gangs->host, gang_id, code, tow_status_message(cause));
}

static size_t list_waits(void *context, tow_worker_wait_t *waits,
                         size_t capacity)
{
    tow_gangs_t *gangs = context;
    _Static_assert(TOW_HOST_MISSING_MAX <= TOW_WAIT_MISSING_MAX, "they fit");
    tow_host_wait_t found[TOW_XLA_DEVICE_COUNT_MAX];
    int64_t now_ns;
    const size_t count = tow_host_waits(
        gangs->host, found,
        capacity < TOW_COUNT_OF(found) ? capacity : TOW_COUNT_OF(found),
        &now_ns);
    for (size_t i = 0; i < count; i++) {
        waits[i] = (tow_worker_wait_t){
            .device = found[i].device,
            .gang_id = found[i].run_id,
            .waited_ns = (uint64_t)(now_ns - found[i].since_ns),
            .missing_count = found[i].missing_count};
        memcpy(waits[i].missing, found[i].missing, sizeof(found[i].missing));
    }
    return count;
}

tow_worker_hooks_t tow_gangs_hooks(tow_gangs_t *gangs)
{
    return (tow_worker_hooks_t){.peer_added = peer_added,
                                .peer_gone = peer_gone,
                                .abort_gang = abort_gang,
                                .waits = list_waits,
                                .context = gangs};
}

/* A lane that broke or a peer that fell silent: the span has failed what waited
 * for it, and the controller decides whether it is gone. */
static void peer_failed(void *context, uint32_t process, tow_status_t cause)
{
    tow_gangs_t *gangs = context;
    tow_log(&gangs->env->log, TOW_LOG_WARN, "no word from a peer",
            TOW_F_U64("process", process), TOW_F_STATUS("cause", cause));
}

/* -- Opening ------------------------------------------------------------------------- */

static tow_status_t open_host(tow_gangs_t *gangs,
                              const tow_gangs_options_t *options)
{
    int64_t ids[TOW_XLA_DEVICE_COUNT_MAX];
    for (uint32_t i = 0; i < options->device_count; i++)
        ids[i] = (int64_t)TOW_XLA_PROCESS_STRIDE * options->process + i;
    const tow_host_options_t host = {.arena = gangs->arena,
                                     .device_ids = ids,
                                     .device_count = options->device_count};
    return tow_host_open(&host, &gangs->host);
}

static tow_status_t open_span(tow_gangs_t *gangs,
                              const tow_gangs_options_t *options)
{
    if (!tow_env_has_lanes(options->env)) return TOW_OK;
    const tow_span_options_t span = {.env = options->env,
                                     .host = gangs->host,
                                     .process_id = options->process,
                                     .device_count = options->device_count,
                                     .host_id = hash_text(options->host, 0),
                                     .check = options->check,
                                     .peer_failed = peer_failed,
                                     .context = gangs};
    return tow_span_open(&span, &gangs->span);
}

static tow_status_t set_up(tow_gangs_t *gangs,
                           const tow_gangs_options_t *options)
{
    tow_gangs_arena_name(options->cluster, options->host, gangs->arena);
    TOW_RETURN_IF_ERROR(door_enter(&gangs->door, gangs->arena));
    tow_status_t status = open_host(gangs, options);
    door_let_in(&gangs->door);
    if (status != TOW_OK) return status;
    TOW_RETURN_IF_ERROR(open_span(gangs, options));
    /* A span sends gangs of one host straight to the arena. */
    gangs->collectives = (tow_xla_collectives_t){
        .struct_size = sizeof(gangs->collectives),
        .context = gangs->span != NULL ? (void *)gangs->span : gangs->host,
        .run = gangs->span != NULL ? tow_span_collective : tow_host_collective,
        .takes_turns = 1};
    return TOW_OK;
}

static void destroy(tow_gangs_t *gangs)
{
    tow_host_close(gangs->host);
    door_leave(&gangs->door);
    tow_free(gangs);
}

tow_status_t tow_gangs_open(const tow_gangs_options_t *options,
                            tow_gangs_t **out_gangs)
{
    *out_gangs = NULL;
    if (options->device_count == 0 ||
        options->device_count > TOW_XLA_DEVICE_COUNT_MAX ||
        options->process >= TOW_XLA_PROCESS_COUNT_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "process %u with %u devices: there are 1 to %d, and "
                         "processes below %d",
                         options->process, options->device_count,
                         TOW_XLA_DEVICE_COUNT_MAX, TOW_XLA_PROCESS_COUNT_MAX);
    tow_gangs_t *gangs = tow_calloc(1, sizeof(*gangs));
    if (gangs == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    gangs->env = options->env;
    gangs->door.fd = -1;
    tow_status_t status = set_up(gangs, options);
    if (status != TOW_OK) {
        destroy(gangs);
        return tow_status_annotate(status, "where gangs of %s meet on %s",
                                   options->cluster, options->host);
    }
    *out_gangs = gangs;
    return TOW_OK;
}

/* -- Closing -------------------------------------------------------------------------- */

static void tell_closed(void *context)
{
    tow_gangs_t *gangs = context;
    const tow_closed_t closed = gangs->closed;
    destroy(gangs);
    if (closed.run != NULL) closed.run(closed.context);
}

static void tell_later(tow_post_t *post)
{
    tell_closed(TOW_CONTAINER_OF(post, tow_gangs_t, post));
}

void tow_gangs_close(tow_gangs_t *gangs, tow_closed_t closed)
{
    gangs->closed = closed;
    if (gangs->span != NULL) {
        tow_span_close(gangs->span, (tow_closed_t){tell_closed, gangs});
        return;
    }
    gangs->post.run = tell_later;
    tow_env_post(gangs->env, &gangs->post);
}

const tow_xla_collectives_t *tow_gangs_collectives(const tow_gangs_t *gangs)
{
    return &gangs->collectives;
}

tow_region_key_t tow_gangs_mail(const tow_gangs_t *gangs)
{
    if (gangs->span == NULL) return (tow_region_key_t){0};
    return tow_span_self(gangs->span).door;
}
