/* Device time of gangs: a member that waits for a late one reports the wait
 * apart, on its thread and on a fiber of its caller. Times are compared on one
 * clock, which all processes share. */
#include "gang.h"

#include <time.h>

enum {
    ROUND_COUNT_MAX = 40,
    EARLY = 0, /* the process that waits */
    LATE = 1,
};

#define DELAY_NS 2000000

static int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void delay(void)
{
    const int64_t since_ns = clock_ns();
    while (clock_ns() < since_ns + DELAY_NS) {
    }
}

/* Waits for a device, without destroying its event, and reads its time. */
static void read_time(PJRT_Event *event, uint64_t *out_busy_ns,
                      uint64_t *out_wait_ns)
{
    PJRT_Event_Await_Args args = {.struct_size = sizeof(args), .event = event};
    expect_ok(api->PJRT_Event_Await(&args));
    extension->device_time(event, out_busy_ns, out_wait_ns);
}

/* True if every device of this process has waited for the late one. The other
 * process starts DELAY_NS after our members are in their collective, but they
 * may lose their cores before they begin to wait there: then they were busy. */
static bool check_times(call_t *call, const process_t *process,
                        int64_t since_ns)
{
    bool has_waited = true;
    for (size_t i = 0; i < DEVICES_EACH; i++) {
        uint64_t busy_ns, wait_ns;
        read_time(call->done[i], &busy_ns, &wait_ns);
        assert_true(busy_ns > 0);
        assert_true(busy_ns + wait_ns <= (uint64_t)(clock_ns() - since_ns));
        if (process->index == EARLY) assert_true(busy_ns + wait_ns >= DELAY_NS);
        has_waited &= wait_ns >= DELAY_NS;
    }
    return has_waited;
}

static bool run_once(process_t *process, PJRT_LoadedExecutable *sum,
                     uint64_t run_id, uint32_t flags)
{
    if (process->index == LATE) {
        await_inside(process, EARLY, DEVICES_EACH);
        delay();
    }
    const int64_t since_ns = clock_ns();
    call_t call = start_with(process, sum, run_id, flags);
    const bool has_waited = check_times(&call, process, since_ns);
    finish(&call, 10, 50, 90, 130);
    meet(process);
    if (process->index == EARLY) await_inside(process, LATE, DEVICES_EACH);
    meet(process);
    return has_waited;
}

/* Both processes run all rounds; in one at least the wait is whole. */
static void run_rounds(process_t *process, uint32_t flags)
{
    PJRT_LoadedExecutable *sum = load(process, 0);
    bool has_waited = false;
    for (uint64_t round = 0; round < ROUND_COUNT_MAX; round++)
        has_waited |= run_once(process, sum, 1 + round, flags);
    assert_true(has_waited || process->index == LATE);
    unload(sum);
}

static void wait_on_threads(process_t *process)
{
    run_rounds(process, 0);
}

static void wait_on_fibers(process_t *process)
{
    run_rounds(process, TOW_XLA_EXECUTE_INLINE_FIBERS);
    assert_true(process->index == LATE || process->inline_count > 0);
}

static void run_gang(const char *part)
{
    /* clang-format off */
    static const char sum[] = FUNCTION(
        ALL_REDUCE("%0", "%a", "add", GROUPS_ALL, CHANNEL("1"))
        "return %0 : tensor<4xf32>\n");
    /* clang-format on */
    gang_t gang;
    gang_open(&gang);
    gang_add_program(&gang, sum, MEMBER_COUNT);
    gang_start(&gang, part);
    gang_close(&gang);
}

static void member_that_waits_for_a_late_one_reports_a_wait(void **state)
{
    run_gang("wait_on_threads");
}

static void member_on_a_fiber_reports_a_wait_too(void **state)
{
    run_gang("wait_on_fibers");
}

static const part_t PARTS[] = {
    {"wait_on_threads", wait_on_threads},
    {"wait_on_fibers", wait_on_fibers},
};

#define CASE(name) cmocka_unit_test_setup(name, harness_set_up)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(member_that_waits_for_a_late_one_reports_a_wait),
        CASE(member_on_a_fiber_reports_a_wait_too),
    };
    return gang_main(argc, argv, PARTS, TOW_COUNT_OF(PARTS), tests,
                     TOW_COUNT_OF(tests));
}
