/* Listening and dialling.
 *
 * An attempt is one object that travels: one trip to the listener's host, then
 * the round trips of the handshake; then it becomes a turn of the listener's
 * node, which accepts the peer; the result travels back. On the way either side
 * may die or close, and the path may be cut. */
#include <string.h>

#include "env/sim/sim_impl.h"
#include "wire/address.h"

typedef enum dial_phase {
    DIAL_REACHES, /* arrives at the listener's host */
    DIAL_PROVES,  /* the listener has completed the handshake */
} dial_phase_t;

struct tow_sim_dial {
    tow_sim_emission_t emission;
    tow_sim_source_t source;
    tow_sim_link_t *link; /* NULL: discarded */
    dial_phase_t phase;
    uint64_t listener_id;
    tow_sim_node_t *listener_node;
    uint32_t host_index;
    int64_t begun_ns;
};

size_t tow_sim_dial_bytes(void)
{
    return sizeof(tow_sim_dial_t);
}

/* -- Listeners ------------------------------------------------------------ */

static tow_status_t parse_address(const char *text, tow_address_t *out_address)
{
    TOW_RETURN_IF_ERROR(tow_address_parse(text, out_address));
    if (out_address->kind == TOW_ADDRESS_SIM) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "%s cannot be reached from the simulator; use "
                     "sim:NAME",
                     text);
}

static void listener_free(tow_sim_listener_t *listener)
{
    tow_free(listener->address);
    tow_free(listener);
}

/* `listener->address` includes the scheme. */
static const char *name_of(const tow_sim_listener_t *listener)
{
    return strchr(listener->address, ':') + 1;
}

static tow_status_t listener_create(tow_sim_node_t *node, const char *text,
                                    tow_sim_listener_t **out_listener)
{
    tow_sim_t *sim = node->sim;
    tow_sim_listener_t *listener = tow_calloc(1, sizeof(*listener));
    if (listener == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    listener->base.env = &node->env;
    listener->address = tow_strdup(text);
    if (listener->address == NULL ||
        !tow_names_put(&sim->listeners, name_of(listener), listener)) {
        listener_free(listener);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    listener->base.address = listener->address;
    listener->id = ++sim->listener_id_last;
    *out_listener = listener;
    return TOW_OK;
}

tow_status_t tow_sim_listen(tow_env_t *env, const tow_listen_options_t *options,
                            tow_listener_t **out_listener)
{
    tow_sim_node_t *node = tow_sim_node_of(env);
    tow_address_t address;
    TOW_RETURN_IF_ERROR(tow_sim_check_open(node));
    TOW_RETURN_IF_ERROR(parse_address(options->address, &address));
    tow_sim_listener_t *listener =
        tow_names_find(&node->sim->listeners, address.host);
    if (listener != NULL)
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "%s listens at %s already; choose another address",
                         listener->base.env->name, options->address);
    TOW_RETURN_IF_ERROR(listener_create(node, options->address, &listener));
    listener->accept = options->accept;
    listener->context = options->context;
    tow_list_append(&node->listeners, &listener->by_node);
    *out_listener = &listener->base;
    return TOW_OK;
}

static void release_listener(tow_sim_t *sim,
                             tow_sim_pending_close_t *pending_close)
{
    (void)sim;
    listener_free(
        TOW_CONTAINER_OF(pending_close, tow_sim_listener_t, pending_close));
}

static void stop_listening(tow_sim_listener_t *listener)
{
    tow_sim_t *sim = tow_sim_node_of(listener->base.env)->sim;
    tow_names_remove(&sim->listeners, name_of(listener));
    tow_list_remove(&listener->by_node);
}

void tow_sim_listener_close(tow_listener_t *base, tow_closed_t closed)
{
    tow_sim_listener_t *listener = (tow_sim_listener_t *)base;
    TOW_ASSERT(!listener->closing);
    listener->closing = true;
    stop_listening(listener);
    listener->pending_close = (tow_sim_pending_close_t){
        .release = release_listener, .closed = closed};
    tow_sim_close_later(tow_sim_node_of(base->env), &listener->pending_close);
}

void tow_sim_listener_kill(tow_sim_listener_t *listener)
{
    stop_listening(listener);
    listener_free(listener);
}

/* -- Attempts ------------------------------------------------------------- */

static void dial_free(tow_sim_t *sim, tow_sim_dial_t *dial)
{
    if (dial->link != NULL) dial->link->dial = NULL;
    tow_pool_give(&sim->dials, dial);
}

void tow_sim_dial_discard(tow_sim_link_t *link)
{
    if (link->dial != NULL) link->dial->link = NULL;
    link->dial = NULL;
}

/* The attempt has failed; the dialler learns of it at `time_ns`. */
static int64_t fail_at(tow_sim_t *sim, tow_sim_dial_t *dial, int64_t time_ns,
                       tow_status_t take_cause)
{
    tow_sim_link_end_at(
        dial->link, time_ns > sim->now_ns ? time_ns : sim->now_ns, take_cause);
    dial_free(sim, dial);
    return TOW_TIME_NEVER;
}

static int64_t fail_silently(tow_sim_t *sim, tow_sim_dial_t *dial)
{
    return fail_at(sim, dial, dial->begun_ns + sim->options.timeouts.dial_ns,
                   TOW_ERROR(TOW_DEADLINE_EXCEEDED, "no answer from sim:%s",
                             dial->link->address));
}

/* The node at the address: the one that listens there, or else the one of that
 * name. */
static tow_sim_node_t *node_behind(tow_sim_t *sim, const char *address,
                                   tow_sim_listener_t **out_listener)
{
    *out_listener = tow_names_find(&sim->listeners, address);
    if (*out_listener != NULL)
        return tow_sim_node_of((*out_listener)->base.env);
    return tow_names_find(&sim->nodes_by_name, address);
}

static bool is_cut(const tow_sim_channel_t *channel)
{
    return tow_sim_channel_is_cut(channel) ||
           tow_sim_channel_is_cut(channel->reverse);
}

static int64_t reach(tow_sim_t *sim, tow_sim_dial_t *dial,
                     tow_sim_channel_t *there)
{
    tow_sim_link_t *link = dial->link;
    tow_sim_listener_t *listener;
    tow_sim_node_t *node = node_behind(sim, link->address, &listener);
    int64_t back_ns = tow_sim_channel_trip(sim, there->reverse);
    if (listener == NULL)
        return fail_at(sim, dial, back_ns,
                       TOW_ERROR(TOW_UNAVAILABLE, "nobody listens at sim:%s",
                                 link->address));
    int64_t round_trip_ns =
        tow_sim_channel_trip(sim, there) - sim->now_ns + back_ns - sim->now_ns;
    if (link->expected_name != NULL &&
        strcmp(link->expected_name, node->name) != 0)
        return fail_at(sim, dial, back_ns + round_trip_ns,
                       TOW_ERROR(TOW_FAILED_PRECONDITION,
                                 "sim:%s: expected %s and found %s there",
                                 link->address, link->expected_name,
                                 node->name));
    dial->phase = DIAL_PROVES;
    dial->listener_id = listener->id;
    dial->listener_node = node;
    return sim->now_ns + round_trip_ns * TOW_SIM_HANDSHAKE_ROUND_TRIPS;
}

/* A turn of the listener's node. */
static int64_t let_in(tow_sim_t *sim, tow_sim_dial_t *dial,
                      tow_sim_listener_t *listener)
{
    tow_sim_node_t *node = dial->source.node;
    tow_sim_link_t *dialled = dial->link;
    tow_sim_link_t *accepted = tow_sim_link_create(node);
    if (accepted == NULL || !tow_sim_link_connect(dialled, accepted)) {
        tow_sim_out_of_memory(sim);
        dial_free(sim, dial);
        return TOW_TIME_NEVER;
    }
    dial_free(sim, dial);
    tow_sim_record(
        sim, &(tow_sim_event_t){.time_ns = sim->now_ns,
                                .kind = EVENT_ACCEPT,
                                .node = node->index,
                                .peer = tow_sim_link_node(dialled)->index});
    tow_sim_turn_begin(node, 0);
    listener->accept(listener->context, &accepted->base);
    TOW_ASSERT(accepted->base.handler != NULL ||
               accepted->base.state == TOW_LINK_CLOSING);
    tow_sim_turn_end(node);
    return TOW_TIME_NEVER;
}

/* A frozen listener does not reply; a busy one replies when its turn comes. */
static int64_t prove(tow_sim_t *sim, tow_sim_dial_t *dial,
                     tow_sim_channel_t *there)
{
    if (sim->now_ns > dial->begun_ns + sim->options.timeouts.dial_ns)
        return fail_silently(sim, dial);
    if (dial->source.node == NULL) {
        if (dial->listener_node->paused) return fail_silently(sim, dial);
        dial->source.node = dial->listener_node;
        return sim->now_ns;
    }
    tow_sim_listener_t *listener;
    (void)node_behind(sim, dial->link->address, &listener);
    if (listener == NULL || listener->id != dial->listener_id)
        return fail_at(sim, dial, tow_sim_channel_trip(sim, there->reverse),
                       TOW_ERROR(TOW_UNAVAILABLE,
                                 "sim:%s hung up during the handshake",
                                 dial->link->address));
    return let_in(sim, dial, listener);
}

static int64_t dial_perform(tow_sim_t *sim, tow_sim_source_t *source)
{
    tow_sim_dial_t *dial = TOW_CONTAINER_OF(source, tow_sim_dial_t, source);
    if (dial->link == NULL || sim->ending) {
        dial_free(sim, dial);
        return TOW_TIME_NEVER;
    }
    tow_sim_node_t *dialler = tow_sim_link_node(dial->link);
    tow_sim_host_t *host = sim->hosts.items[dial->host_index];
    tow_sim_channel_t *there = tow_sim_channel(sim, dialler->host, host);
    if (there == NULL) {
        tow_sim_out_of_memory(sim);
        return fail_silently(sim, dial);
    }
    if (is_cut(there) || tow_sim_chance(sim, there->path->loss_ppm))
        return fail_silently(sim, dial);
    return dial->phase == DIAL_REACHES ? reach(sim, dial, there)
                                       : prove(sim, dial, there);
}

static void emit_dial(tow_sim_t *sim, tow_sim_emission_t *emission)
{
    tow_sim_dial_t *dial = TOW_CONTAINER_OF(emission, tow_sim_dial_t, emission);
    tow_sim_link_t *link = dial->link;
    if (link == NULL) {
        dial_free(sim, dial);
        return;
    }
    tow_sim_listener_t *listener;
    tow_sim_node_t *node = node_behind(sim, link->address, &listener);
    dial->begun_ns = sim->now_ns;
    if (node == NULL) {
        fail_at(sim, dial, sim->now_ns + TOW_SIM_UNKNOWN_NAME_NS,
                TOW_ERROR(TOW_UNAVAILABLE, "nobody listens at sim:%s",
                          link->address));
        return;
    }
    dial->host_index = node->host->index;
    tow_sim_channel_t *there =
        tow_sim_channel(sim, tow_sim_link_node(link)->host, node->host);
    if (there == NULL)
        tow_sim_out_of_memory(sim);
    else
        tow_sim_schedule_source(sim, &dial->source,
                                tow_sim_channel_trip(sim, there));
    if (there == NULL) dial_free(sim, dial);
}

void tow_sim_dial(tow_sim_link_t *link)
{
    tow_sim_node_t *node = tow_sim_link_node(link);
    tow_sim_dial_t *dial = tow_pool_take(&node->sim->dials);
    if (dial == NULL) {
        tow_sim_out_of_memory(node->sim);
        return;
    }
    *dial = (tow_sim_dial_t){.emission = {.emit = emit_dial},
                             .source = {.perform = dial_perform},
                             .link = link};
    link->dial = dial;
    tow_sim_emit(node, &dial->emission);
}

static bool copy_texts(tow_sim_link_t *link,
                       const tow_connect_options_t *options)
{
    link->address = tow_strdup(options->address + strlen("sim:"));
    if (link->address == NULL) return false;
    if (options->expected_name == NULL) return true;
    link->expected_name = tow_strdup(options->expected_name);
    return link->expected_name != NULL;
}

tow_status_t tow_sim_connect(tow_env_t *env,
                             const tow_connect_options_t *options,
                             tow_link_t **out_link)
{
    tow_sim_node_t *node = tow_sim_node_of(env);
    tow_address_t address;
    TOW_RETURN_IF_ERROR(tow_sim_check_open(node));
    TOW_RETURN_IF_ERROR(parse_address(options->address, &address));
    tow_sim_link_t *link = tow_sim_link_create(node);
    if (link == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (!copy_texts(link, options)) {
        tow_sim_link_kill(link);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    link->base.handler = options->handler;
    link->base.context = options->context;
    link->dial_delay_ns = TOW_DIAL_DELAY_MIN_NS;
    tow_sim_dial(link);
    *out_link = &link->base;
    return TOW_OK;
}
