/* The suite: every guarantee of env/env.h, as tests that run on each
 * implementation. */
#include <stdlib.h>

#include "world.h"

static const suite_t *const suites[] = {
    &time_suite,  &post_suite,       &work_suite,      &link_suite,
    &break_suite, &link_close_suite, &death_suite,     &datagram_suite,
    &bulk_suite,  &lane_close_suite, &env_close_suite,
};

#define TEST_COUNT_MAX 256

const char *world_node_name(size_t node)
{
    static const char *const names[WORLD_NODE_COUNT_MAX] = {"node-0", "node-1",
                                                            "node-2", "node-3"};
    TOW_ASSERT(node < WORLD_NODE_COUNT_MAX);
    return names[node];
}

world_t *world_create(size_t node_count)
{
    return world_create_with(&(world_options_t){.node_count = node_count});
}

world_t *world_create_with_lanes(size_t node_count)
{
    return world_create_with(
        &(world_options_t){.node_count = node_count, .lanes = true});
}

int conformance_main(int argc, char **argv)
{
    static struct CMUnitTest tests[TEST_COUNT_MAX];
    size_t test_count = 0;
    for (size_t i = 0; i < TOW_COUNT_OF(suites); i++) {
        TOW_ASSERT(test_count + suites[i]->test_count <= TEST_COUNT_MAX);
        memcpy(tests + test_count, suites[i]->tests,
               suites[i]->test_count * sizeof(tests[0]));
        test_count += suites[i]->test_count;
    }
    return tow_test_main(argc, argv, tests, test_count);
}
