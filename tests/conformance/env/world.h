/* A world to test an env implementation in: a few named nodes and the paths
 * between them, all driven by the test's own thread.
 *
 * The suite is written against this header. world_sim.c and world_net.c each
 * implement it, and each makes a program of its own from the same tests. A test
 * names abilities that it needs with world_require, which skips the test in a
 * world without them.
 *
 * A test that fails leaves by longjmp, with its probes on a stack frame that no
 * longer exists. Its world is then leaked, never closed: see
 * world_tear_down. */
#ifndef TOW_TESTS_CONFORMANCE_ENV_WORLD_H_
#define TOW_TESTS_CONFORMANCE_ENV_WORLD_H_

#include "base/testing.h"

#include "env/env.h"
#include "wire/address.h"

#define WORLD_NODE_COUNT_MAX  4
#define WORLD_ADDRESS_SIZE    (TOW_ADDRESS_TEXT_MAX + 32)
#define WORLD_ROUTE_COUNT_MAX 8

typedef struct world world_t;

typedef enum world_ability {
    /* There are other threads: they may post, and work runs on them. */
    WORLD_THREADS,
    /* Work runs between turns, on this thread, and takes virtual time. */
    WORLD_VIRTUAL_TIME,
    /* world_corrupt. */
    WORLD_CORRUPTION,
} world_ability_t;

/* Options of the nodes. Zero means default. */
typedef struct world_options {
    size_t node_count;
    uint64_t features[WORLD_NODE_COUNT_MAX];
    bool lanes; /* with a data plane, if the world has one */
    bool lossy; /* datagrams are lost, duplicated and reordered, if supported */
} world_options_t;

/* Nodes "node-0", "node-1", ... Fails the test on an error. */
world_t *world_create(size_t node_count);
/* With a data plane; skips the test in a world without one. */
world_t *world_create_with_lanes(size_t node_count);
world_t *world_create_with(const world_options_t *options);
/* Closes the open nodes, waits for that, and fails the test if a block leaked
 * since world_create. */
void world_destroy(world_t *world);
/* Teardown of every test: leaks the world of a test that failed, but ends its
 * child processes and removes its files. */
int world_tear_down(void **state);

/* Destroys the world and skips the test unless the world has the ability. */
void world_require(world_t *world, world_ability_t ability);
bool world_can(const world_t *world, world_ability_t ability);

/* NULL once the node is closed. */
tow_env_t *world_env(world_t *world, size_t node);
const char *world_node_name(size_t node);

/* tow_env_close of one node; the test fails if `closed` runs inside the call or
 * twice. Also valid inside a callback. */
void world_begin_close(world_t *world, size_t node);
bool world_is_closed(const world_t *world, size_t node);
/* The same, and waits. Then the env no longer exists. */
void world_close_node(world_t *world, size_t node);
/* Reopens a closed node as its next incarnation. */
void world_revive_node(world_t *world, size_t node);

/* -- Driving the nodes ---------------------------------------------------- */

/* Steps until the condition holds. Fails the test, naming the condition, at a
 * bound that only prevents a hang. */
#define WORLD_UNTIL(world, condition)                                 \
    do {                                                              \
        world_wait_begin(world);                                      \
        while (!(condition))                                          \
            world_wait_step((world), #condition, __FILE__, __LINE__); \
    } while (0)

void world_wait_begin(world_t *world);
void world_wait_step(world_t *world, const char *condition, const char *file,
                     int line);
/* One small step: at least one turn of a node that has work. */
void world_step(world_t *world);
/* Runs until nothing is in flight, to show that something does not happen. */
void world_settle(world_t *world);
/* Drives one node until something happens on it, with no bound on its sleep
 * other than one that fails the test. WORLD_THREADS only. */
void world_sleep(world_t *world, size_t node);

/* A paused node takes no turns, like a process that hangs. */
void world_stall(world_t *world, size_t node);
void world_resume(world_t *world, size_t node);

/* -- Addresses and paths -------------------------------------------------- */

/* An unused address for `node` to listen on. */
const char *world_listen_address(world_t *world, size_t node,
                                 char address[WORLD_ADDRESS_SIZE]);
/* A path that the test can break: the address to dial instead of `target`, from
 * node `from` to node `to`. */
const char *world_route(world_t *world, size_t from, size_t to,
                        const char *target, char address[WORLD_ADDRESS_SIZE]);
/* Breaks all connections on the routes between the two, losing bytes in flight,
 * and rejects new ones until world_mend. */
void world_break(world_t *world, size_t from, size_t to);
void world_mend(world_t *world, size_t from, size_t to);
/* From now on this fraction of the fragments on lanes has a bit flipped. */
void world_corrupt(world_t *world, uint32_t parts_per_million);

/* -- Victims -------------------------------------------------------------- */

/* A peer that the test kills. In `net` a process of its own that ends by
 * SIGKILL, in `sim` a node that crashes; so the test talks to it over links
 * only. One at a time; its name is VICTIM_NAME. */
#define VICTIM_NAME "victim"

typedef struct victim_role {
    const char *name;
    /* Runs first in each incarnation. `address` is a listener of the test, to
     * dial. */
    void (*boot)(tow_env_t *env, const char *address);
} victim_role_t;

extern const victim_role_t victim_roles[];
extern const size_t victim_role_count;
const victim_role_t *victim_role_find(const char *name);

void world_spawn(world_t *world, const char *role, const char *address);
/* Kills it, and waits until it has ended. */
void world_kill(world_t *world);

/* -- The program ---------------------------------------------------------- */

/* Each file of tests is one list. */
typedef struct suite {
    const struct CMUnitTest *tests;
    size_t test_count;
} suite_t;

extern const suite_t time_suite, post_suite, work_suite, link_suite,
    break_suite, link_close_suite, death_suite, datagram_suite, bulk_suite,
    lane_close_suite, env_close_suite;

#define CONFORMANCE_TEST(name) cmocka_unit_test_teardown(name, world_tear_down)
#define SUITE(name, ...)                                           \
    static const struct CMUnitTest name##_tests[] = {__VA_ARGS__}; \
    const suite_t name##_suite = {name##_tests, TOW_COUNT_OF(name##_tests)};

/* Runs all suites, or the tests whose names match an argument. */
int conformance_main(int argc, char **argv);

#endif /* TOW_TESTS_CONFORMANCE_ENV_WORLD_H_ */
