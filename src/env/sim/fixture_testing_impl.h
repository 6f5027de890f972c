/* A fixture for the simulator's own tests: nodes that the test drives, and link
 * ends that record their callbacks. */
#ifndef TOW_ENV_SIM_FIXTURE_TESTING_IMPL_H_
#define TOW_ENV_SIM_FIXTURE_TESTING_IMPL_H_

#include "base/testing.h"

#include <string.h>

#include "base/alloc.h"
#include "env/sim/sim.h"
#include "env/tuning.h"

#define US     TOW_NS_PER_US
#define MS     TOW_NS_PER_MS
#define SECOND TOW_NS_PER_S

/* The recorded callbacks of one end of a link. */
typedef struct end {
    tow_link_t *link;
    int up_count;
    int down_count;
    int message_count;
    int writable_count;
    int closed_count;
    tow_code_t last_cause;
    int64_t last_ns; /* of the last callback */
    uint64_t last_size;
    uint8_t last_first_byte;
    bool in_order; /* 32-bit counters arrive in order and without a gap */
    uint32_t next_counter;
    void (*on_message)(struct end *end, const tow_message_t *message);
    void (*on_up)(struct end *end);
    bool close_on_down;
    bool close_on_message;
} end_t;

static inline void note(end_t *end, tow_link_t *link)
{
    end->link = link;
    end->last_ns = tow_env_now_ns(link->env);
}

static inline void end_closed(void *context)
{
    end_t *end = context;
    end->closed_count++;
    end->link = NULL;
}

static inline tow_closed_t tell_end(end_t *end)
{
    return (tow_closed_t){end_closed, end};
}

static inline void end_up(void *context, tow_link_t *link)
{
    end_t *end = context;
    note(end, link);
    end->up_count++;
    end->in_order = true;
    end->next_counter = 0;
    if (end->on_up != NULL) end->on_up(end);
}

static inline void end_message(void *context, tow_link_t *link,
                               const tow_message_t *message)
{
    end_t *end = context;
    note(end, link);
    end->message_count++;
    end->last_size = message->size;
    if (message->size >= 4) {
        uint32_t counter;
        memcpy(&counter, message->bytes, 4);
        if (counter != end->next_counter++) end->in_order = false;
    }
    if (message->size > 0) end->last_first_byte = message->bytes[0];
    if (end->on_message != NULL) end->on_message(end, message);
    if (end->close_on_message) tow_link_close(link, tell_end(end));
}

static inline void end_writable(void *context, tow_link_t *link)
{
    end_t *end = context;
    note(end, link);
    end->writable_count++;
}

static inline void end_down(void *context, tow_link_t *link, tow_status_t cause)
{
    end_t *end = context;
    note(end, link);
    end->down_count++;
    end->last_cause = tow_status_code(cause);
    if (end->close_on_down) tow_link_close(link, tell_end(end));
}

static const tow_link_handler_t end_handler = {
    .up = end_up,
    .message = end_message,
    .writable = end_writable,
    .down = end_down,
};

static inline void end_accept(void *context, tow_link_t *link)
{
    end_t *end = context;
    end->link = link;
    link->handler = &end_handler;
    link->context = end;
}

/* A simulation of two nodes, "a" and "b"; b listens at "sim:b". */
typedef struct pair {
    tow_sim_t *sim;
    tow_sim_node_t *a;
    tow_sim_node_t *b;
    tow_env_t *a_env;
    tow_env_t *b_env;
    tow_listener_t *listener;
    end_t dialled;  /* at a */
    end_t accepted; /* at b */
} pair_t;

static inline void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

static inline tow_sim_node_t *make_node(tow_sim_t *sim, const char *name)
{
    tow_sim_node_t *node = NULL;
    must(tow_sim_node_create(sim, &(tow_sim_node_options_t){.name = name},
                             &node));
    return node;
}

static inline void listen_as_b(pair_t *pair)
{
    must(tow_env_listen(pair->b_env,
                        &(tow_listen_options_t){.address = "sim:b",
                                                .accept = end_accept,
                                                .context = &pair->accepted},
                        &pair->listener));
}

static inline void dial_from_a(pair_t *pair)
{
    must(tow_env_connect(pair->a_env,
                         &(tow_connect_options_t){.address = "sim:b",
                                                  .handler = &end_handler,
                                                  .context = &pair->dialled},
                         &pair->dialled.link));
}

static inline void pair_open(pair_t *pair, tow_sim_options_t options)
{
    *pair = (pair_t){0};
    options.log.level = TOW_LOG_OFF;
    must(tow_sim_create(&options, &pair->sim));
    pair->a = make_node(pair->sim, "a");
    pair->b = make_node(pair->sim, "b");
    pair->a_env = tow_sim_node_env(pair->a);
    pair->b_env = tow_sim_node_env(pair->b);
}

static inline void run_idle(tow_sim_t *sim)
{
    must(tow_sim_run(sim, &(tow_sim_run_options_t){0}));
}

static inline void run_until(tow_sim_t *sim, int64_t until_ns)
{
    must(tow_sim_run(sim, &(tow_sim_run_options_t){.until_ns = until_ns}));
}

static inline void run_for(tow_sim_t *sim, int64_t span_ns)
{
    run_until(sim, tow_sim_now_ns(sim) + span_ns);
}

/* The two nodes, with a link between them that is up. */
static inline void pair_connect(pair_t *pair, tow_sim_options_t options)
{
    pair_open(pair, options);
    listen_as_b(pair);
    dial_from_a(pair);
    run_idle(pair->sim);
    assert_int_equal(pair->dialled.up_count, 1);
    assert_int_equal(pair->accepted.up_count, 1);
}

static inline tow_send_result_t send_counter(end_t *end, uint32_t counter)
{
    return tow_link_send(end->link, 7, &counter, sizeof(counter));
}

static inline void pair_close(pair_t *pair)
{
    tow_sim_destroy(pair->sim);
}

#endif /* TOW_ENV_SIM_FIXTURE_TESTING_IMPL_H_ */
