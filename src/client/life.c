/* Lives of a client: each is a session with one life of the controller. When that
 * is lost all that was made in it is lost with it; the client dials again, and
 * begins another.
 *
 * What was made in a life has its number, and is checked where it is used: handles
 * of before can be held and released, and of them nothing is said to the
 * controller that is there now. Ids count on, so no two lives have the same. */
#include "client/client_impl.h"

#include <string.h>

#include "base/alloc.h"

/* -- Checking ------------------------------------------------------------------- */

uint32_t tow_client_life(const tow_client_t *client)
{
    return atomic_load_explicit(&client->life, memory_order_acquire);
}

tow_status_t tow_client_check(const tow_client_t *client)
{
    if (client->lost != TOW_OK) return tow_status_retain(client->lost);
    if (client->session != NULL && client->opening.settled) return TOW_OK;
    return TOW_ERROR(TOW_FAILED_PRECONDITION, "the client is not open");
}

tow_status_t tow_client_check_life(const tow_client_t *client, uint32_t life)
{
    TOW_RETURN_IF_ERROR(tow_client_check(client));
    if (TOW_LIKELY(life == tow_client_life(client))) return TOW_OK;
    return TOW_ERROR(TOW_UNAVAILABLE,
                     "lost with the cluster, which has come again without it: "
                     "make it anew (%s)",
                     tow_status_message(client->ended));
}

tow_status_t tow_slice_check(const tow_slice_t *slice)
{
    return tow_client_check_life(slice->client, slice->life);
}

/* -- The end of one -------------------------------------------------------------- */

static void settle_map(tow_client_t *client, tow_map_t *map, size_t offset)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(map, &cursor, &key, &value))
        tow_settle(client, (settling_t *)((char *)value + offset),
                   tow_status_retain(client->lost));
}

static void end_life(tow_client_t *client, tow_status_t take_cause)
{
    tow_status_release(client->ended);
    client->ended = tow_status_retain(take_cause);
    client->lost = take_cause;
    atomic_fetch_add(&client->life, 1);
    tow_settle(client, &client->opening, tow_status_retain(take_cause));
    settle_map(client, &client->slices, offsetof(tow_slice_t, opening));
    settle_map(client, &client->functions, offsetof(tow_function_t, compiling));
    settle_map(client, &client->functions, offsetof(tow_function_t, asking));
    settle_map(client, &client->programs, offsetof(tow_program_t, adding));
    tow_runs_lost(client);
    tow_uploads_lost(client);
    tow_requests_lost(client);
    tow_lanes_close(client);
    tow_client_forget_releases(client);
    tow_client_forget_blobs(client);
    tow_client_tell_room(client);
}

/* It was gone already, and has not come again: the newest reason is told too. */
static void note_failed_dial(tow_client_t *client, tow_status_t take_cause)
{
    tow_status_t lost = TOW_ERROR(
        TOW_UNAVAILABLE, "%s; it has not come again: %s",
        tow_status_message(client->ended), tow_status_message(take_cause));
    tow_status_release(take_cause);
    tow_status_release(client->lost);
    client->lost = lost;
}

/* -- The next one ----------------------------------------------------------------- */

/* For good: it never was there, or we leave, or we know that it will not be. */
static bool is_final(const tow_client_t *client)
{
    return client->is_closing || client->is_final ||
           client->opening.error != TOW_OK;
}

static void wait_to_dial(tow_client_t *client)
{
    const int64_t delay_ns = client->redial_delay_ns;
    client->redial_delay_ns = 2 * delay_ns < TOW_CLIENT_REDIAL_MAX_NS
                                  ? 2 * delay_ns
                                  : TOW_CLIENT_REDIAL_MAX_NS;
    tow_env_timer_start(client->env, &client->redial,
                        tow_env_now_ns(client->env) + delay_ns);
}

static void session_closed(void *context)
{
    tow_client_t *client = context;
    client->closing = NULL;
    client->is_closed = client->is_closing;
    if (!is_final(client)) wait_to_dial(client);
    if (client->shared != NULL) tow_shared_net_notify(client->shared);
}

static void leave_session(tow_client_t *client, tow_status_t reason)
{
    if (client->session == NULL) return;
    client->closing = client->session;
    client->session = NULL;
    tow_session_close(client->closing, reason,
                      (tow_closed_t){session_closed, client});
}

void tow_client_lose(tow_client_t *client, tow_status_t take_cause)
{
    tow_status_t reason = tow_status_retain(take_cause);
    if (client->lost == TOW_OK)
        end_life(client, take_cause);
    else if (!is_final(client))
        note_failed_dial(client, take_cause);
    else
        tow_status_release(take_cause);
    leave_session(client, client->is_closing ? TOW_OK : reason);
    tow_status_release(reason);
}

static tow_status_t dial(tow_client_t *client, int64_t patience_ns)
{
    const tow_session_dial_options_t options = {.address = client->address,
                                                .patience_ns = patience_ns,
                                                .handler = &tow_client_handler,
                                                .context = client};
    return tow_session_dial(client->env, &options, &client->session);
}

/* An error: it will not be there again. */
static tow_status_t check_cluster(const tow_client_t *client)
{
    const tow_client_keeper_t *keeper = &client->keeper;
    return keeper->check != NULL ? keeper->check(keeper->context) : TOW_OK;
}

static void redial(tow_timer_t *timer)
{
    tow_client_t *client = TOW_CONTAINER_OF(timer, tow_client_t, redial);
    tow_status_t status = check_cluster(client);
    if (status != TOW_OK) {
        tow_status_release(client->lost);
        client->lost = status;
        client->is_final = true;
        return;
    }
    status = dial(client, TOW_CLIENT_REDIAL_PATIENCE_NS);
    if (status == TOW_OK) return;
    note_failed_dial(client, status);
    wait_to_dial(client);
}

void tow_client_begin_life(tow_client_t *client)
{
    client->redial_delay_ns = TOW_CLIENT_REDIAL_MIN_NS;
    tow_status_release(client->lost);
    client->lost = TOW_OK;
    tow_settle(client, &client->opening, TOW_OK);
}

/* -- The first and the last -------------------------------------------------------- */

tow_status_t tow_client_open_first(tow_client_t *client,
                                   const tow_machine_options_t *options)
{
    client->keeper = options->keeper;
    client->redial.fire = redial;
    client->redial_delay_ns = TOW_CLIENT_REDIAL_MIN_NS;
    client->address = tow_strdup(options->address);
    if (client->address == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return dial(client, options->patience_ns);
}

void tow_client_shut(tow_client_t *client)
{
    if (client->is_closing) return;
    tow_client_flush_releases(client);
    client->is_closing = true;
    tow_env_timer_stop(client->env, &client->redial);
    tow_client_lose(client, TOW_ERROR(TOW_CANCELLED, "the client was closed"));
    client->is_closed = client->closing == NULL;
}
