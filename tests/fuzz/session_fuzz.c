/* Input: a byte that selects the attacked side, then steps: messages of a
 * hostile peer that has the token, and other events. The contract of session.h
 * holds for the victim's owner, and nothing leaks. */
#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "env/sim/sim.h"
#include "env/tuning.h"
#include "fuzz.h"
#include "session/session.h"

#define VICTIM_LISTENS       1
#define RETRANSMIT_BYTES_MAX 20000u
#define VICTIMS_MAX          64

/* Steps; a byte below 128 is the type of a message, its length and its bytes
 * follow. make_corpus.c uses them, too. */
enum {
    BREAK = 128,
    WAIT,
    WAIT_LONG,
    SEND,
    SEND_BLOB, /* and its size, in KiB */
    RESUME,    /* and the count received, plus one */
    ACK,       /* the same */
};

/* One end of a session: the attacked one. */
typedef struct victim {
    tow_session_t *session;
    bool is_opened;
    bool is_gone;
} victim_t;

typedef struct world {
    tow_sim_t *sim;
    tow_sim_node_t *attacker;
    tow_sim_node_t *attacked;
    tow_link_t *link; /* of the attacker; NULL: none */
    uint64_t session; /* the victim's, or a made-up one */
    tow_session_port_t *port;
    victim_t victims[VICTIMS_MAX];
    size_t victim_count;
    int blob_count; /* not released */
} world_t;

/* -- The victim ------------------------------------------------------------ */

static void on_opened(void *context, tow_session_t *session)
{
    victim_t *victim = context;
    TOW_ASSERT(!victim->is_opened && !victim->is_gone);
    TOW_ASSERT(tow_session_is_open(session));
    victim->is_opened = true;
}

static void on_message(void *context, tow_session_t *session,
                       const tow_message_t *message)
{
    const victim_t *victim = context;
    TOW_ASSERT(victim->is_opened && !victim->is_gone);
    TOW_ASSERT(message->type >= TOW_MESSAGE_SESSION_FIRST);
}

static void on_blob(void *context, tow_session_t *session, uint64_t blob,
                    void *take_bytes, size_t size)
{
    const victim_t *victim = context;
    TOW_ASSERT(victim->is_opened && !victim->is_gone && blob > 0);
    tow_free(take_bytes);
}

static void on_disconnect(void *context, tow_session_t *session,
                          tow_status_t cause)
{
    victim_t *victim = context;
    TOW_ASSERT(!victim->is_gone && cause != TOW_OK);
    for (const char *c = tow_status_message(cause); *c != '\0'; c++)
        TOW_ASSERT((unsigned char)*c >= ' ');
    TOW_ASSERT(tow_session_stats(session).retransmit_bytes == 0);
    victim->is_gone = true;
}

static const tow_session_handler_t handler = {
    .opened = on_opened,
    .message = on_message,
    .blob = on_blob,
    .disconnected = on_disconnect,
};

static victim_t *new_victim(world_t *world)
{
    return world->victim_count < VICTIMS_MAX
               ? &world->victims[world->victim_count++]
               : NULL;
}

static void on_arrived(void *context, tow_session_t *session)
{
    victim_t *victim = new_victim(context);
    if (victim == NULL) {
        tow_session_close(session, TOW_OK, (tow_closed_t){0});
        return;
    }
    victim->session = session;
    tow_session_accept(session, &handler, victim);
}

static void count_out(void *context)
{
    (*(int *)context)--;
}

static void make_victim_send(world_t *world, size_t blob_bytes)
{
    static uint8_t bytes[255u << 10];
    if (world->victim_count == 0) return;
    tow_session_t *session = world->victims[world->victim_count - 1].session;
    tow_msg_cancel_t cancel = TOW_MSG_CANCEL_INIT;
    cancel.run = 7;
    (void)!tow_session_send(session, TOW_MESSAGE_CANCEL, &cancel.base);
    if (blob_bytes == 0) return;
    world->blob_count++;
    tow_session_send_blob(session,
                          &(tow_session_blob_t){.bytes = bytes,
                                                .size = blob_bytes,
                                                .release = count_out,
                                                .context = &world->blob_count});
}

/* -- The attacker ---------------------------------------------------------- */

static void on_attacker_up(void *context, tow_link_t *link)
{
    ((world_t *)context)->link = link;
}

static void on_attacker_message(void *context, tow_link_t *link,
                                const tow_message_t *message)
{
    world_t *world = context;
    tow_arena_t arena;
    const tow_body_t *body;
    if (message->type != TOW_MESSAGE_SESSION_RESUME) return;
    tow_arena_init(&arena, 4096);
    TOW_ASSERT(tow_message_decode(message->type, message->bytes, message->size,
                                  &arena, &body) == TOW_OK);
    world->session = ((const tow_msg_session_resume_t *)body)->session;
    tow_arena_deinit(&arena);
}

static void on_attacker_down(void *context, tow_link_t *link,
                             tow_status_t cause)
{
    world_t *world = context;
    if (link->state != TOW_LINK_FINISHED) return;
    if (world->link == link) world->link = NULL;
    tow_link_close(link, (tow_closed_t){0});
}

static const tow_link_handler_t attacker_handler = {
    .up = on_attacker_up,
    .message = on_attacker_message,
    .down = on_attacker_down,
};

static void on_attacker_accept(void *context, tow_link_t *link)
{
    link->handler = &attacker_handler;
    link->context = context;
}

static void attacker_dial(world_t *world)
{
    const tow_connect_options_t options = {.address = "sim:listener",
                                           .handler = &attacker_handler,
                                           .context = world};
    TOW_ASSERT(tow_env_connect(tow_sim_node_env(world->attacker), &options,
                               &world->link) == TOW_OK);
}

static void attacker_say(world_t *world, uint32_t type, const void *bytes,
                         size_t size)
{
    if (world->link != NULL)
        (void)!tow_link_send(world->link, type, bytes, (uint32_t)size);
}

static void attacker_break(world_t *world)
{
    if (world->link == NULL) return;
    tow_link_close(world->link, (tow_closed_t){0});
    world->link = NULL;
    if (world->port != NULL) attacker_dial(world);
}

static void attacker_resume(world_t *world, uint64_t received)
{
    uint8_t bytes[32];
    tow_msg_session_resume_t resume = TOW_MSG_SESSION_RESUME_INIT;
    resume.session = world->session;
    resume.received = received;
    attacker_say(world, TOW_MESSAGE_SESSION_RESUME, bytes,
                 tow_message_encode(&resume.base, bytes));
}

static void attacker_acknowledge(world_t *world, uint64_t received)
{
    uint8_t bytes[64];
    tow_msg_session_ack_t ack = TOW_MSG_SESSION_ACK_INIT;
    ack.received = received;
    ack.sent_ns = (uint64_t)tow_sim_now_ns(world->sim);
    attacker_say(world, TOW_MESSAGE_SESSION_ACK, bytes,
                 tow_message_encode(&ack.base, bytes));
}

/* -- The simulation -------------------------------------------------------- */

static void run(world_t *world, int64_t span_ns)
{
    const tow_sim_run_options_t options = {
        .until_ns = tow_sim_now_ns(world->sim) + span_ns};
    TOW_ASSERT(tow_sim_run(world->sim, &options) == TOW_OK);
    (void)tow_sim_node_env(world->attacker);
    (void)tow_sim_node_env(world->attacked);
}

static const tow_session_limits_t limits = {.retransmit_bytes_max =
                                                RETRANSMIT_BYTES_MAX,
                                            .blob_bytes_max = 1u << 20};

static void attack_listener(world_t *world)
{
    const tow_session_listen_options_t options = {.address = "sim:listener",
                                                  .limits = limits,
                                                  .session_count_max = 3,
                                                  .arrived = on_arrived,
                                                  .context = world};
    TOW_ASSERT(tow_session_listen(tow_sim_node_env(world->attacked), &options,
                                  &world->port) == TOW_OK);
    attacker_dial(world);
}

static void attack_dialler(world_t *world)
{
    const tow_listen_options_t listen = {.address = "sim:listener",
                                         .accept = on_attacker_accept,
                                         .context = world};
    tow_listener_t *listener;
    victim_t *victim = new_victim(world);
    const tow_session_dial_options_t dial = {.address = "sim:listener",
                                             .limits = limits,
                                             .handler = &handler,
                                             .context = victim};
    TOW_ASSERT(tow_env_listen(tow_sim_node_env(world->attacker), &listen,
                              &listener) == TOW_OK);
    TOW_ASSERT(tow_session_dial(tow_sim_node_env(world->attacked), &dial,
                                &victim->session) == TOW_OK);
}

static tow_sim_node_t *make_node(tow_sim_t *sim, const char *name)
{
    tow_sim_node_t *node = NULL;
    const tow_sim_node_options_t options = {.name = name};
    TOW_ASSERT(tow_sim_node_create(sim, &options, &node) == TOW_OK);
    return node;
}

static void open_world(world_t *world, bool victim_listens)
{
    const tow_sim_options_t options = {
        .remote_path.latency_ns = 10 * TOW_NS_PER_US, .log.level = TOW_LOG_OFF};
    *world = (world_t){.session = 1};
    TOW_ASSERT(tow_sim_create(&options, &world->sim) == TOW_OK);
    world->attacker = make_node(world->sim, "attacker");
    world->attacked = make_node(world->sim, "attacked");
    if (victim_listens)
        attack_listener(world);
    else
        attack_dialler(world);
    run(world, TOW_NS_PER_MS);
}

static void close_world(world_t *world)
{
    for (size_t i = 0; i < world->victim_count; i++)
        tow_session_close(world->victims[i].session, TOW_OK, (tow_closed_t){0});
    if (world->port != NULL)
        tow_session_port_close(world->port, (tow_closed_t){0});
    TOW_ASSERT(world->blob_count == 0);
    tow_sim_destroy(world->sim);
}

/* Returns the number of input bytes consumed. */
static size_t step(world_t *world, const uint8_t *bytes, size_t count)
{
    const uint8_t what = bytes[0];
    const uint8_t next = count > 1 ? bytes[1] : 0;
    if (what < BREAK) {
        size_t size = next < count - 2 ? next : count - 2;
        if (count < 2) return 1;
        attacker_say(world, what, bytes + 2, size);
        return 2 + size;
    }
    switch (what) {
    case BREAK: attacker_break(world); return 1;
    case WAIT: run(world, 50 * TOW_NS_PER_MS); return 1;
    case WAIT_LONG: run(world, 3 * TOW_NS_PER_S); return 1;
    case SEND: make_victim_send(world, 0); return 1;
    case SEND_BLOB: make_victim_send(world, (size_t)next << 10); return 2;
    case RESUME: attacker_resume(world, next - 1u); return 2;
    case ACK: attacker_acknowledge(world, next - 1u); return 2;
    default: run(world, TOW_NS_PER_MS); return 1;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static world_t world;
    const int64_t live_count = tow_alloc_live_count();
    if (count == 0) return 0;
    open_world(&world, bytes[0] & VICTIM_LISTENS);
    for (size_t at = 1; at < count;) {
        at += step(&world, bytes + at, count - at);
        if (world.victim_count == 0) continue;
        const tow_session_t *session =
            world.victims[world.victim_count - 1].session;
        TOW_ASSERT(tow_session_stats(session).retransmit_bytes <=
                   RETRANSMIT_BYTES_MAX + 64u * count);
    }
    run(&world, TOW_NS_PER_S);
    close_world(&world);
    TOW_ASSERT(tow_alloc_live_count() == live_count);
    return 0;
}
