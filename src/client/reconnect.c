/* Connection generations. A generation is one session with the controller.
 * When the controller disconnects, everything made in the generation is lost;
 * the client dials again and begins another.
 *
 * Slices and programs record their generation, which is checked where they are
 * used. Handles of earlier generations can be retained and released, but no
 * message names them to the new controller. Ids continue to count up, so no
 * two generations share one. */
#include "client/client_impl.h"

#include <string.h>

#include "base/alloc.h"

/* -- Checks ---------------------------------------------------------------- */

uint32_t tow_client_generation(const tow_client_t *client)
{
    return atomic_load_explicit(&client->generation, memory_order_acquire);
}

tow_status_t tow_client_connection_status(const tow_client_t *client)
{
    if (client->disconnect_cause != TOW_OK)
        return tow_status_retain(client->disconnect_cause);
    if (client->session != NULL && client->opening.settled) return TOW_OK;
    return TOW_ERROR(TOW_FAILED_PRECONDITION, "the client is not open");
}

tow_status_t tow_client_generation_status(const tow_client_t *client,
                                          uint32_t generation)
{
    TOW_RETURN_IF_ERROR(tow_client_connection_status(client));
    if (TOW_LIKELY(generation == tow_client_generation(client))) return TOW_OK;
    return TOW_ERROR(TOW_UNAVAILABLE,
                     "lost with the cluster, which has restarted without it: "
                     "make it again (%s)",
                     tow_status_message(client->last_cause));
}

tow_status_t tow_slice_generation_status(const tow_slice_t *slice)
{
    return tow_client_generation_status(slice->client, slice->generation);
}

/* -- End of a generation --------------------------------------------------- */

static void settle_all(tow_client_t *client, tow_map_t *map, size_t offset)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(map, &cursor, &key, &value))
        tow_completion_settle(client, (completion_t *)((char *)value + offset),
                              tow_status_retain(client->disconnect_cause));
}

static void end_generation(tow_client_t *client, tow_status_t take_cause)
{
    tow_status_release(client->last_cause);
    client->last_cause = tow_status_retain(take_cause);
    client->disconnect_cause = take_cause;
    atomic_fetch_add(&client->generation, 1);
    tow_completion_settle(client, &client->opening,
                          tow_status_retain(take_cause));
    settle_all(client, &client->slices, offsetof(tow_slice_t, opening));
    settle_all(client, &client->functions, offsetof(tow_function_t, compiling));
    settle_all(client, &client->functions,
               offsetof(tow_function_t, query_ready));
    settle_all(client, &client->programs, offsetof(tow_program_t, adding));
    tow_client_runs_on_disconnect(client);
    tow_client_uploads_on_disconnect(client);
    tow_client_requests_on_disconnect(client);
    tow_client_lanes_close(client);
    tow_client_discard_releases(client);
    tow_client_discard_blobs(client);
    tow_client_notify_room(client);
}

/* A redial failed: adds the newest reason. */
static void note_failed_dial(tow_client_t *client, tow_status_t take_cause)
{
    tow_status_t lost = TOW_ERROR(
        TOW_UNAVAILABLE, "%s; reconnecting has failed: %s",
        tow_status_message(client->last_cause), tow_status_message(take_cause));
    tow_status_release(take_cause);
    tow_status_release(client->disconnect_cause);
    client->disconnect_cause = lost;
}

/* -- Reconnecting ---------------------------------------------------------- */

/* The client never opened, is closing, or knows that the cluster has ended. */
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
    if (client->net != NULL) tow_locked_net_notify(client->net);
}

static void leave_session(tow_client_t *client, tow_status_t reason)
{
    if (client->session == NULL) return;
    client->closing = client->session;
    client->session = NULL;
    tow_session_close(client->closing, reason,
                      (tow_closed_t){session_closed, client});
}

void tow_client_on_disconnect(tow_client_t *client, tow_status_t take_cause)
{
    tow_status_t reason = tow_status_retain(take_cause);
    if (client->disconnect_cause == TOW_OK)
        end_generation(client, take_cause);
    else if (!is_final(client))
        note_failed_dial(client, take_cause);
    else
        tow_status_release(take_cause);
    leave_session(client, client->is_closing ? TOW_OK : reason);
    tow_status_release(reason);
}

static tow_status_t dial(tow_client_t *client, int64_t connect_timeout_ns)
{
    const tow_session_dial_options_t options = {.address = client->address,
                                                .connect_timeout_ns =
                                                    connect_timeout_ns,
                                                .handler = &tow_client_handler,
                                                .context = client};
    return tow_session_dial(client->env, &options, &client->session);
}

/* An error: the cluster has ended for good. */
static tow_status_t check_cluster(const tow_client_t *client)
{
    const tow_cluster_monitor_t *monitor = &client->monitor;
    return monitor->check != NULL ? monitor->check(monitor->context) : TOW_OK;
}

static void redial(tow_timer_t *timer)
{
    tow_client_t *client = TOW_CONTAINER_OF(timer, tow_client_t, redial);
    tow_status_t status = check_cluster(client);
    if (status != TOW_OK) {
        tow_status_release(client->disconnect_cause);
        client->disconnect_cause = status;
        client->is_final = true;
        return;
    }
    status = dial(client, TOW_CLIENT_REDIAL_PATIENCE_NS);
    if (status == TOW_OK) return;
    note_failed_dial(client, status);
    wait_to_dial(client);
}

void tow_client_begin_generation(tow_client_t *client)
{
    client->redial_delay_ns = TOW_CLIENT_REDIAL_MIN_NS;
    tow_status_release(client->disconnect_cause);
    client->disconnect_cause = TOW_OK;
    tow_completion_settle(client, &client->opening, TOW_OK);
}

/* -- Opening and closing --------------------------------------------------- */

tow_status_t tow_client_dial_first(tow_client_t *client,
                                   const tow_client_dial_options_t *options)
{
    client->monitor = options->monitor;
    client->redial.fire = redial;
    client->redial_delay_ns = TOW_CLIENT_REDIAL_MIN_NS;
    client->address = tow_strdup(options->address);
    if (client->address == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return dial(client, options->connect_timeout_ns);
}

void tow_client_shut(tow_client_t *client)
{
    if (client->is_closing) return;
    tow_client_flush_releases(client);
    client->is_closing = true;
    tow_env_timer_stop(client->env, &client->redial);
    tow_client_on_disconnect(client,
                             TOW_ERROR(TOW_CANCELLED, "the client was closed"));
    client->is_closed = client->closing == NULL;
}
