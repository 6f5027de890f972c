#include "worker/gang_comm.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/hash.h"
#include "collective/intra_host/intra_host.h"
#include "collective/multi_host/multi_host.h"
#include "worker/arena_lock_impl.h"

struct tow_gang_comm {
    tow_env_t *env;
    arena_lock_t arena_lock;
    char arena[TOW_GANG_COMM_ARENA_NAME_SIZE];
    tow_intra_host_t *intra_host; /* owned */
    tow_multi_host_t *multi_host; /* owned; NULL: no data plane */
    tow_xla_collectives_t collectives;
    tow_closed_t closed;
    tow_post_t post;
};

static uint64_t hash_text(const char *text, uint64_t seed)
{
    return tow_hash_bytes(text, strlen(text), seed);
}

/* Members watch each other's processes: those of another process namespace have
 * an arena of their own even where /dev/shm is shared. */
const char *tow_gang_comm_arena_name(const char *cluster, const char *host,
                                     char name[TOW_GANG_COMM_ARENA_NAME_SIZE])
{
    char space[64] = "";
    const ssize_t size =
        readlink("/proc/self/ns/pid", space, sizeof(space) - 1);
    if (size > 0) space[size] = '\0';
    const uint64_t hash =
        hash_text(space, hash_text(host, hash_text(cluster, 0)));
    snprintf(name, TOW_GANG_COMM_ARENA_NAME_SIZE, "/towpath-%u-%016" PRIx64,
             (unsigned)geteuid(), hash);
    return name;
}

void tow_gang_comm_sweep(const char *cluster, const char *host)
{
    char name[TOW_GANG_COMM_ARENA_NAME_SIZE];
    arena_lock_sweep(tow_gang_comm_arena_name(cluster, host, name));
}

/* -- Hooks ----------------------------------------------------------------- */

/* A peer without a mail region can be in no gang with us, unless it shares the
 * arena. */
static void peer_added(void *context, const tow_worker_peer_t *peer)
{
    tow_gang_comm_t *comm = context;
    if (comm->multi_host == NULL || peer->mail.id == 0) return;
    const tow_multi_host_peer_t added = {
        .process_id = peer->process,
        .device_count = peer->device_count,
        .host_id = peer->memory,
        .door = peer->mail,
        .lane_address = peer->lane_address,
        .lane_address_size = peer->lane_address_size,
    };
    tow_status_t status = tow_multi_host_add_peer(comm->multi_host, &added);
    if (status == TOW_OK) return;
    tow_log(&comm->env->log, TOW_LOG_ERROR, "gangs with a worker will fail",
            TOW_F_STR("worker", peer->name), TOW_F_STATUS("cause", status));
    tow_status_release(status);
}

static void peer_disconnected(void *context, uint32_t process,
                              tow_status_t cause)
{
    tow_gang_comm_t *comm = context;
    if (comm->multi_host != NULL)
        tow_multi_host_remove_peer(comm->multi_host, process, cause);
}

static void abort_gang(void *context, uint64_t gang_id, tow_status_t cause)
{
    tow_gang_comm_t *comm = context;
    const tow_code_t code = tow_status_code(cause);
    if (comm->multi_host != NULL)
        tow_multi_host_abort(comm->multi_host, gang_id, code,
                             tow_status_message(cause));
    else
        tow_intra_host_abort(comm->intra_host, gang_id, code,
                             tow_status_message(cause));
}

static size_t list_waits(void *context, tow_worker_wait_t *waits,
                         size_t capacity)
{
    tow_gang_comm_t *comm = context;
    _Static_assert(TOW_INTRA_HOST_MISSING_MAX <= TOW_WAIT_MISSING_MAX,
                   "they fit");
    tow_intra_host_wait_t found[TOW_XLA_DEVICE_COUNT_MAX];
    int64_t now_ns;
    const size_t count = tow_intra_host_list_waits(
        comm->intra_host, found,
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

tow_worker_hooks_t tow_gang_comm_hooks(tow_gang_comm_t *comm)
{
    return (tow_worker_hooks_t){.peer_added = peer_added,
                                .peer_disconnected = peer_disconnected,
                                .abort_gang = abort_gang,
                                .waits = list_waits,
                                .context = comm};
}

/* A lane broke or a peer is silent: the multi-host engine has failed the
 * collectives that waited for it, and the controller decides whether it has
 * disconnected. */
static void peer_failed(void *context, uint32_t process, tow_status_t cause)
{
    tow_gang_comm_t *comm = context;
    tow_log(&comm->env->log, TOW_LOG_WARN, "a peer does not respond",
            TOW_F_U64("process", process), TOW_F_STATUS("cause", cause));
}

/* -- Opening --------------------------------------------------------------- */

/* `arena`: NULL: one of this process alone. */
static tow_status_t open_intra_host(tow_gang_comm_t *comm,
                                    const tow_gang_comm_options_t *options,
                                    const char *arena)
{
    int64_t ids[TOW_XLA_DEVICE_COUNT_MAX];
    for (uint32_t i = 0; i < options->device_count; i++)
        ids[i] = (int64_t)TOW_XLA_PROCESS_STRIDE * options->process + i;
    const tow_intra_host_options_t host = {
        .arena = arena,
        .random = tow_random_next(tow_env_random(options->env)),
        .device_ids = ids,
        .device_count = options->device_count};
    return tow_intra_host_open(&host, &comm->intra_host);
}

static tow_status_t open_multi_host(tow_gang_comm_t *comm,
                                    const tow_gang_comm_options_t *options)
{
    if (!tow_env_has_lanes(options->env)) return TOW_OK;
    const tow_multi_host_options_t span = {
        .env = options->env,
        .host = comm->intra_host,
        .process_id = options->process,
        .device_count = options->device_count,
        .host_id = tow_intra_host_memory(comm->intra_host),
        .check = options->check,
        .peer_failed = peer_failed,
        .context = comm};
    return tow_multi_host_open(&span, &comm->multi_host);
}

/* Without shared memory, our devices still communicate among themselves, and
 * with other workers of this host as with those of other hosts. */
static tow_status_t join_arena(tow_gang_comm_t *comm,
                               const tow_gang_comm_options_t *options)
{
    tow_gang_comm_arena_name(options->cluster, options->host, comm->arena);
    tow_status_t status = arena_lock_join(&comm->arena_lock, comm->arena);
    if (status == TOW_OK) {
        status = open_intra_host(comm, options, comm->arena);
        arena_lock_open(&comm->arena_lock);
        return status;
    }
    tow_log(&comm->env->log, TOW_LOG_WARN,
            "no shared memory in /dev/shm: gangs with other workers of this "
            "host go through sockets",
            TOW_F_STATUS("cause", status));
    tow_status_release(status);
    return open_intra_host(comm, options, NULL);
}

static tow_status_t set_up(tow_gang_comm_t *comm,
                           const tow_gang_comm_options_t *options)
{
    tow_status_t status = join_arena(comm, options);
    if (status != TOW_OK) return status;
    TOW_RETURN_IF_ERROR(open_multi_host(comm, options));
    /* The multi-host engine passes gangs of one host directly to the arena. */
    comm->collectives = (tow_xla_collectives_t){
        .struct_size = sizeof(comm->collectives),
        .context = comm->multi_host != NULL ? (void *)comm->multi_host
                                            : comm->intra_host,
        .run = comm->multi_host != NULL ? tow_multi_host_collective
                                        : tow_intra_host_collective,
        .supports_fibers = 1};
    return TOW_OK;
}

static void destroy(tow_gang_comm_t *comm)
{
    tow_intra_host_close(comm->intra_host);
    arena_lock_leave(&comm->arena_lock);
    tow_free(comm);
}

tow_status_t tow_gang_comm_open(const tow_gang_comm_options_t *options,
                                tow_gang_comm_t **out_comm)
{
    *out_comm = NULL;
    if (options->device_count == 0 ||
        options->device_count > TOW_XLA_DEVICE_COUNT_MAX ||
        options->process >= TOW_XLA_PROCESS_COUNT_MAX)
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "process %u with %u devices: the limits are 1 to %d devices, "
            "and process numbers below %d",
            options->process, options->device_count, TOW_XLA_DEVICE_COUNT_MAX,
            TOW_XLA_PROCESS_COUNT_MAX);
    tow_gang_comm_t *comm = tow_calloc(1, sizeof(*comm));
    if (comm == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    comm->env = options->env;
    comm->arena_lock.fd = -1;
    tow_status_t status = set_up(comm, options);
    if (status != TOW_OK) {
        destroy(comm);
        return tow_status_annotate(
            status, "opening the communication of gangs of %s on %s",
            options->cluster, options->host);
    }
    *out_comm = comm;
    return TOW_OK;
}

/* -- Closing --------------------------------------------------------------- */

static void report_closed(void *context)
{
    tow_gang_comm_t *comm = context;
    const tow_closed_t closed = comm->closed;
    destroy(comm);
    if (closed.run != NULL) closed.run(closed.context);
}

static void report_closed_later(tow_post_t *post)
{
    report_closed(TOW_CONTAINER_OF(post, tow_gang_comm_t, post));
}

void tow_gang_comm_close(tow_gang_comm_t *comm, tow_closed_t closed)
{
    comm->closed = closed;
    if (comm->multi_host != NULL) {
        tow_multi_host_close(comm->multi_host,
                             (tow_closed_t){report_closed, comm});
        return;
    }
    comm->post.run = report_closed_later;
    tow_env_post(comm->env, &comm->post);
}

void tow_gang_comm_abandon(tow_gang_comm_t *comm)
{
    arena_lock_leave(&comm->arena_lock);
}

const tow_xla_collectives_t *tow_gang_comm_collectives(
    const tow_gang_comm_t *comm)
{
    return &comm->collectives;
}

uint64_t tow_gang_comm_memory(const tow_gang_comm_t *comm)
{
    return tow_intra_host_memory(comm->intra_host);
}

tow_region_key_t tow_gang_comm_mail(const tow_gang_comm_t *comm)
{
    if (comm->multi_host == NULL) return (tow_region_key_t){0};
    return tow_multi_host_self(comm->multi_host).door;
}
