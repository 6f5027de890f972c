/* Opening and closing, peers, and aborts. */
#include "collective/multi_host/multi_host.h"

#include <stdio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "collective/multi_host/multi_host_impl.h"

static void lock(tow_multi_host_t *span)
{
    pthread_mutex_lock(&span->lock); /* tow-allow: the face */
}

static void unlock(tow_multi_host_t *span)
{
    pthread_mutex_unlock(&span->lock);
}

/* -- Aborts ---------------------------------------------------------------- */

/* Fails the members of this host, unless the run is aborted already. */
static void abort_here(tow_multi_host_t *span, uint64_t run_id, tow_code_t code,
                       const char *reason)
{
    tow_status_t known = tow_intra_host_check(span->options.host, run_id);
    if (known == TOW_OK)
        tow_intra_host_abort(span->options.host, run_id, code, reason);
    tow_status_ignore(known, "only whether it is known matters");
}

/* The abort of another host, on the loop. */
static void aborted(void *context, uint64_t run_id, tow_code_t code,
                    const char *reason)
{
    abort_here(context, run_id, code, reason);
}

static void peer_failed(void *context, uint32_t process_id, tow_status_t cause)
{
    const tow_multi_host_options_t *options =
        &((tow_multi_host_t *)context)->options;
    if (options->peer_failed != NULL)
        options->peer_failed(options->context, process_id, cause);
}

typedef struct abort_post {
    tow_post_t post;
    tow_multi_host_t *span;
    uint64_t run_id;
    tow_code_t code;
    char reason[TOW_MULTI_HOST_REASON_BYTES];
} abort_post_t;

static void abort_on_loop(tow_post_t *post)
{
    abort_post_t *order = TOW_CONTAINER_OF(post, abort_post_t, post);
    tow_letters_abort(order->span->letters, order->run_id, order->code,
                      order->reason);
    tow_free(order);
}

void tow_multi_host_abort(tow_multi_host_t *span, uint64_t run_id,
                          tow_code_t code, const char *reason)
{
    TOW_ASSERT(code != TOW_CODE_OK);
    abort_here(span, run_id, code, reason);
    abort_post_t *order = tow_calloc(1, sizeof(*order));
    if (order == NULL) return; /* The other hosts will time out. */
    order->post.run = abort_on_loop;
    order->span = span;
    order->run_id = run_id;
    order->code = code;
    snprintf(order->reason, sizeof(order->reason), "%s", reason);
    tow_env_post(span->options.env, &order->post);
}

/* -- Peers ----------------------------------------------------------------- */

/* Bounds the number of removed processes that are recorded. Under the lock. */
static void forget_gone(tow_multi_host_t *span)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (span->gone_count > TOW_MULTI_HOST_DEAD_COUNT &&
           tow_map_next(&span->places, &cursor, &key, &value)) {
        place_t *place = value;
        if (place->gone == TOW_OK) continue;
        tow_map_remove(&span->places, key);
        tow_status_ignore(place->gone, "so many have died since");
        tow_free(place);
        span->gone_count--;
    }
}

/* Under the lock. */
static tow_status_t put_place(tow_multi_host_t *span,
                              const tow_multi_host_peer_t *peer)
{
    const uint64_t key = (uint64_t)peer->process_id + 1;
    place_t *place = tow_map_find(&span->places, key);
    if (place == NULL) {
        place = tow_calloc(1, sizeof(*place));
        if (place == NULL || !tow_map_put(&span->places, key, place)) {
            tow_free(place);
            return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
        }
    } else if (place->gone != TOW_OK) {
        tow_status_ignore(place->gone, "it is there again");
        span->gone_count--;
    }
    *place = (place_t){.host_id = peer->host_id};
    span->change_count++;
    return TOW_OK;
}

tow_status_t tow_multi_host_add_peer(tow_multi_host_t *span,
                                     const tow_multi_host_peer_t *peer)
{
    TOW_RETURN_IF_ERROR(tow_letters_add_peer(span->letters, peer));
    lock(span);
    tow_status_t status = put_place(span, peer);
    unlock(span);
    if (status != TOW_OK)
        tow_letters_remove_peer(span->letters, peer->process_id, status);
    return status;
}

void tow_multi_host_remove_peer(tow_multi_host_t *span, uint32_t process_id,
                                tow_status_t cause)
{
    lock(span);
    place_t *place = tow_map_find(&span->places, (uint64_t)process_id + 1);
    if (place != NULL && place->gone == TOW_OK) {
        place->gone =
            TOW_ERROR(tow_status_code(cause), "process %u is gone: %s",
                      (unsigned)process_id, tow_status_message(cause));
        span->gone_count++;
        span->change_count++;
        forget_gone(span);
    }
    unlock(span);
    tow_letters_remove_peer(span->letters, process_id, cause);
}

/* -- Opening and closing --------------------------------------------------- */

static tow_status_t check_options(const tow_multi_host_options_t *options)
{
    if (options->host == NULL)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a span needs the arena of its host");
    return TOW_OK;
}

tow_status_t tow_multi_host_open(const tow_multi_host_options_t *options,
                                 tow_multi_host_t **out_span)
{
    *out_span = NULL;
    TOW_RETURN_IF_ERROR(check_options(options));
    tow_multi_host_t *span = tow_calloc(1, sizeof(*span));
    if (span == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    span->options = *options;
    span->errands =
        tow_calloc(options->device_count + (size_t)1, sizeof(*span->errands));
    if (span->errands == NULL) {
        tow_free(span);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    tow_list_init(&span->spares);
    if (sysconf(_SC_NPROCESSORS_ONLN) >= TOW_MULTI_HOST_SPIN_CORE_COUNT)
        span->spin_count = TOW_MULTI_HOST_SPIN_COUNT;
    pthread_mutex_init(&span->lock, NULL);
    const tow_letters_options_t letters = {
        .env = options->env,
        .process_id = options->process_id,
        .device_count = options->device_count,
        .host_id = options->host_id,
        .patience_ns = options->patience_ns,
        .check = options->check,
        .aborted = aborted,
        .peer_failed = peer_failed,
        .context = span,
    };
    tow_status_t status = tow_letters_open(&letters, &span->letters);
    if (status != TOW_OK) {
        pthread_mutex_destroy(&span->lock);
        tow_free(span->errands);
        tow_free(span);
        return status;
    }
    *out_span = span;
    return TOW_OK;
}

static void letters_closed(void *context)
{
    tow_multi_host_t *span = context;
    const tow_closed_t closed = span->closed;
    size_t cursor = 0;
    uint64_t key;
    void *place;
    while (tow_map_next(&span->places, &cursor, &key, &place)) {
        tow_status_ignore(((place_t *)place)->gone, "we end");
        tow_free(place);
    }
    tow_map_deinit(&span->places);
    gang_forget_all(span);
    cursor = 0;
    void *backlog;
    while (tow_map_next(&span->backlogs, &cursor, &key, &backlog))
        tow_free(backlog);
    tow_map_deinit(&span->backlogs);
    tow_free(span->errands);
    tow_list_t *item;
    while ((item = tow_list_pop_front(&span->spares)) != NULL)
        tow_free(TOW_CONTAINER_OF(item, tow_envelope_t, list));
    pthread_mutex_destroy(&span->lock);
    tow_free(span);
    if (closed.run != NULL) closed.run(closed.context);
}

/* Runs after the last errand's post: the threads have left before. */
static void close_on_loop(tow_post_t *post)
{
    tow_multi_host_t *span =
        TOW_CONTAINER_OF(post, tow_multi_host_t, close_post);
    tow_letters_close(span->letters, (tow_closed_t){letters_closed, span});
}

void tow_multi_host_close(tow_multi_host_t *span, tow_closed_t closed)
{
    span->closed = closed;
    span->close_post.run = close_on_loop;
    tow_env_post(span->options.env, &span->close_post);
}

tow_multi_host_peer_t tow_multi_host_self(const tow_multi_host_t *span)
{
    return tow_letters_self(span->letters);
}
