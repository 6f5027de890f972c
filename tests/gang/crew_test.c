/* Light gangs: devices that share a thread take turns on it, also when it is
 * the caller's, when members are late, and when some are lost. Each process has
 * one core, so both of its devices share one seat. */
#include "gang.h"

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

/* Programs of every gang here. */
enum {
    SUM,  /* light, over all four */
    LOOP, /* heavy: some collectives in a loop */
};

enum {
    RUN_COUNT = 100,
    IN_FLIGHT = 20,
    SURVIVOR = 0,
    VICTIM = 1,
};

/* Processes inherit the parent's cores. */
static void start_on_one_core(gang_t *gang, const char *part)
{
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; core++)
        if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    gang_start(gang, part);
    assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

static void open_with_programs(gang_t *gang)
{
    /* clang-format off */
    static const char sum[] = FUNCTION(
        ALL_REDUCE("%0", "%a", "add", GROUPS_ALL, CHANNEL("1"))
        "return %0 : tensor<4xf32>\n");
    static const char loop[] = LOOP("10",
        ALL_REDUCE("%p", "%v", "add", GROUPS_PAIRS, "")
        ALL_REDUCE("%q", "%p", "add", GROUPS_ACROSS, "") QUARTER);
    /* clang-format on */
    gang_open(gang);
    gang_add_program(gang, sum, MEMBER_COUNT);
    gang_add_program(gang, loop, MEMBER_COUNT);
}

static void run_gang(const char *part)
{
    gang_t gang;
    open_with_programs(&gang);
    start_on_one_core(&gang, part);
    gang_close(&gang);
}

static void finish_sum(call_t *call)
{
    finish(call, 10, 50, 90, 130);
}

static void finish_whatever(call_t *call)
{
    for (size_t i = 0; i < DEVICES_EACH; i++) {
        await(call->done[i]);
        destroy(call->outputs[i][0]);
    }
}

/* A program is light once it has run. */
static PJRT_LoadedExecutable *load_light(process_t *process)
{
    PJRT_LoadedExecutable *sum = load(process, SUM);
    call_t call = start(process, sum, 1);
    finish_sum(&call);
    assert_int_equal(process->turn_count, 0);
    await_inside(process, process->index, DEVICES_EACH);
    meet(process);
    return sum;
}

/* -- On seats ---------------------------------------------------------------- */

static void take_turns(process_t *process)
{
    PJRT_LoadedExecutable *sum = load_light(process);
    for (uint64_t first = 0; first < RUN_COUNT; first += IN_FLIGHT) {
        call_t calls[IN_FLIGHT];
        for (uint64_t i = 0; i < IN_FLIGHT; i++)
            calls[i] = start(process, sum, 100 + first + i);
        for (uint64_t i = 0; i < IN_FLIGHT; i++)
            finish_sum(&calls[i]);
    }
    assert_int_equal(process->turn_count, RUN_COUNT * DEVICES_EACH);
    assert_int_equal(process->here_count, 0);
    unload(sum);
}

static void devices_on_one_core_take_turns(void **state)
{
    run_gang("take_turns");
}

static void alternate(process_t *process)
{
    PJRT_LoadedExecutable *sum = load_light(process);
    PJRT_LoadedExecutable *loop = load(process, LOOP);
    call_t light[IN_FLIGHT], heavy[IN_FLIGHT];
    for (uint64_t i = 0; i < IN_FLIGHT; i++) {
        heavy[i] = start(process, loop, 100 + i);
        light[i] = start(process, sum, 200 + i);
    }
    for (uint64_t i = 0; i < IN_FLIGHT; i++) {
        finish_sum(&light[i]);
        finish_whatever(&heavy[i]);
    }
    assert_int_equal(process->turn_count, IN_FLIGHT * DEVICES_EACH);
    unload(loop);
    unload(sum);
}

static void light_and_heavy_runs_stay_in_order(void **state)
{
    run_gang("alternate");
}

/* -- On the caller's thread ---------------------------------------------------- */

static void run_here(process_t *process)
{
    PJRT_LoadedExecutable *sum = load_light(process);
    for (uint64_t run = 0; run < RUN_COUNT; run++) {
        call_t call = start_with(process, sum, 100 + run, TOW_XLA_EXECUTE_HERE);
        finish_sum(&call);
        assert_int_equal(extension->turn(), 0);
    }
    assert_int_equal(process->here_count, RUN_COUNT * DEVICES_EACH);
    unload(sum);
}

static void a_light_gang_runs_on_the_callers_thread(void **state)
{
    run_gang("run_here");
}

/* The first comes back from the call with its work undone. */
static void wait_for_a_late_one(process_t *process)
{
    PJRT_LoadedExecutable *sum = load_light(process);
    for (uint64_t run = 0; run < 6; run++) {
        const bool is_late = process->index == run % PROCESS_COUNT;
        if (is_late) meet(process);
        call_t call = start_with(process, sum, 100 + run, TOW_XLA_EXECUTE_HERE);
        if (!is_late) {
            assert_int_not_equal(extension->turn(), 0);
            meet(process);
        }
        while (run % 4 >= 2 && extension->turn() != 0) {
        }
        finish_sum(&call); /* Or else waiting goes on with it. */
        assert_int_equal(extension->turn(), 0);
        meet(process);
    }
    unload(sum);
}

static void the_caller_goes_on_when_a_late_member_has_come(void **state)
{
    run_gang("wait_for_a_late_one");
}

static void be_aborted(process_t *process)
{
    PJRT_LoadedExecutable *sum = load_light(process);
    for (uint64_t round = 0; round < 6; round++) {
        const uint64_t run_id = 100 + 2 * round;
        const uint32_t flags = round % 4 < 2 ? TOW_XLA_EXECUTE_HERE : 0;
        const size_t waiting = round % PROCESS_COUNT;
        if (process->index != waiting) {
            await_inside(process, waiting, DEVICES_EACH);
            tow_host_abort(process->host, run_id, TOW_CANCELLED,
                           "the client has left");
        } else {
            call_t call = start_with(process, sum, run_id, flags);
            finish_failed(&call, 1, PJRT_Error_Code_CANCELLED,
                          "the client has left");
        }
        meet(process);
        call_t call = start_with(process, sum, run_id + 1, flags);
        finish_sum(&call);
        await_inside(process, process->index, DEVICES_EACH);
        meet(process);
    }
    unload(sum);
}

static void a_light_gang_can_be_aborted(void **state)
{
    run_gang("be_aborted");
}

/* -- Members that are lost -------------------------------------------------------- */

static void expect_unavailable(call_t *call)
{
    finish_failed(call, 1, PJRT_Error_Code_UNAVAILABLE, "device ");
}

/* The victim stays away from a gang that the survivor is in. */
static void lose_the_other(process_t *process)
{
    PJRT_LoadedExecutable *sum = load_light(process);
    if (process->index == VICTIM) meet(process); /* Until it is killed. */
    call_t call = start_with(process, sum, 100, TOW_XLA_EXECUTE_HERE);
    set_mark(process);
    expect_unavailable(&call);
    call = start(process, sum, 101);
    expect_unavailable(&call);
    unload(sum);
}

static void a_light_gang_names_a_member_that_was_killed(void **state)
{
    gang_t gang;
    open_with_programs(&gang);
    start_on_one_core(&gang, "lose_the_other");
    const bool has_begun = gang_try_await_mark(&gang);
    kill(gang.processes[VICTIM], SIGKILL);
    int status = 0;
    assert_int_equal(waitpid(gang.processes[VICTIM], &status, 0),
                     gang.processes[VICTIM]);
    gang.processes[VICTIM] = 0;
    assert_true(has_begun);
    gang_close(&gang);
}

static const part_t PARTS[] = {
    {"take_turns", take_turns}, {"alternate", alternate},
    {"run_here", run_here},     {"wait_for_a_late_one", wait_for_a_late_one},
    {"be_aborted", be_aborted}, {"lose_the_other", lose_the_other},
};

#define CASE(name) cmocka_unit_test_setup(name, harness_set_up)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(devices_on_one_core_take_turns),
        CASE(light_and_heavy_runs_stay_in_order),
        CASE(a_light_gang_runs_on_the_callers_thread),
        CASE(the_caller_goes_on_when_a_late_member_has_come),
        CASE(a_light_gang_can_be_aborted),
        CASE(a_light_gang_names_a_member_that_was_killed),
    };
    return gang_main(argc, argv, PARTS, TOW_COUNT_OF(PARTS), tests,
                     TOW_COUNT_OF(tests));
}
