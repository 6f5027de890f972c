/* Gangs on fibers: devices that share a carrier thread, or the caller's thread,
 * with members that are late, aborted or killed. Each process has one core, so
 * both of its devices share one carrier. */
#include "gang.h"

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

/* Programs of every gang here. */
enum {
    SUM,  /* fiber-safe, over all four */
    LOOP, /* threaded: some collectives in a loop */
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

static void finish_any(call_t *call)
{
    for (size_t i = 0; i < DEVICES_EACH; i++) {
        await(call->done[i]);
        destroy(call->outputs[i][0]);
    }
}

/* A program runs on fibers once it has run on threads. */
static PJRT_LoadedExecutable *load_fiber_safe(process_t *process)
{
    PJRT_LoadedExecutable *sum = load(process, SUM);
    call_t call = start(process, sum, 1);
    finish_sum(&call);
    assert_int_equal(process->fiber_count, 0);
    await_inside(process, process->index, DEVICES_EACH);
    meet(process);
    return sum;
}

/* -- On carriers ----------------------------------------------------------- */

static void share_a_carrier(process_t *process)
{
    PJRT_LoadedExecutable *sum = load_fiber_safe(process);
    for (uint64_t first = 0; first < RUN_COUNT; first += IN_FLIGHT) {
        call_t calls[IN_FLIGHT];
        for (uint64_t i = 0; i < IN_FLIGHT; i++)
            calls[i] = start(process, sum, 100 + first + i);
        for (uint64_t i = 0; i < IN_FLIGHT; i++)
            finish_sum(&calls[i]);
    }
    assert_int_equal(process->fiber_count, RUN_COUNT * DEVICES_EACH);
    assert_int_equal(process->inline_count, 0);
    unload(sum);
}

static void devices_on_one_core_share_a_carrier(void **state)
{
    run_gang("share_a_carrier");
}

static void alternate(process_t *process)
{
    PJRT_LoadedExecutable *sum = load_fiber_safe(process);
    PJRT_LoadedExecutable *loop = load(process, LOOP);
    call_t on_fibers[IN_FLIGHT], threaded[IN_FLIGHT];
    for (uint64_t i = 0; i < IN_FLIGHT; i++) {
        threaded[i] = start(process, loop, 100 + i);
        on_fibers[i] = start(process, sum, 200 + i);
    }
    for (uint64_t i = 0; i < IN_FLIGHT; i++) {
        finish_sum(&on_fibers[i]);
        finish_any(&threaded[i]);
    }
    assert_int_equal(process->fiber_count, IN_FLIGHT * DEVICES_EACH);
    unload(loop);
    unload(sum);
}

static void fiber_and_threaded_runs_stay_in_order(void **state)
{
    run_gang("alternate");
}

/* -- On the caller's thread ------------------------------------------------ */

static void run_inline(process_t *process)
{
    PJRT_LoadedExecutable *sum = load_fiber_safe(process);
    for (uint64_t run = 0; run < RUN_COUNT; run++) {
        call_t call =
            start_with(process, sum, 100 + run, TOW_XLA_EXECUTE_INLINE_FIBERS);
        finish_sum(&call);
        assert_int_equal(extension->progress(), 0);
    }
    assert_int_equal(process->inline_count, RUN_COUNT * DEVICES_EACH);
    unload(sum);
}

static void a_gang_runs_on_fibers_of_the_callers_thread(void **state)
{
    run_gang("run_inline");
}

/* The first process returns from the call with unfinished fibers. */
static void wait_for_a_late_member(process_t *process)
{
    PJRT_LoadedExecutable *sum = load_fiber_safe(process);
    for (uint64_t run = 0; run < 6; run++) {
        const bool is_late = process->index == run % PROCESS_COUNT;
        if (is_late) meet(process);
        call_t call =
            start_with(process, sum, 100 + run, TOW_XLA_EXECUTE_INLINE_FIBERS);
        if (!is_late) {
            assert_int_not_equal(extension->progress(), 0);
            meet(process);
        }
        while (run % 4 >= 2 && extension->progress() != 0) {
        }
        finish_sum(&call); /* Otherwise waiting makes progress. */
        assert_int_equal(extension->progress(), 0);
        meet(process);
    }
    unload(sum);
}

static void unfinished_fibers_continue_when_a_late_member_comes(void **state)
{
    run_gang("wait_for_a_late_member");
}

static void be_aborted(process_t *process)
{
    PJRT_LoadedExecutable *sum = load_fiber_safe(process);
    for (uint64_t round = 0; round < 6; round++) {
        const uint64_t run_id = 100 + 2 * round;
        const uint32_t flags =
            round % 4 < 2 ? TOW_XLA_EXECUTE_INLINE_FIBERS : 0;
        const size_t waiting = round % PROCESS_COUNT;
        if (process->index != waiting) {
            await_inside(process, waiting, DEVICES_EACH);
            tow_intra_host_abort(process->host, run_id, TOW_CANCELLED,
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

static void a_gang_on_fibers_can_be_aborted(void **state)
{
    run_gang("be_aborted");
}

/* -- Killed members -------------------------------------------------------- */

static void expect_unavailable(call_t *call)
{
    finish_failed(call, 1, PJRT_Error_Code_UNAVAILABLE, "device ");
}

/* The victim does not join a run that the survivor is in. */
static void lose_the_other(process_t *process)
{
    PJRT_LoadedExecutable *sum = load_fiber_safe(process);
    if (process->index == VICTIM) meet(process); /* Until it is killed. */
    call_t call = start_with(process, sum, 100, TOW_XLA_EXECUTE_INLINE_FIBERS);
    set_mark(process);
    expect_unavailable(&call);
    call = start(process, sum, 101);
    expect_unavailable(&call);
    unload(sum);
}

static void a_gang_on_fibers_names_a_killed_member(void **state)
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
    {"share_a_carrier", share_a_carrier},
    {"alternate", alternate},
    {"run_inline", run_inline},
    {"wait_for_a_late_member", wait_for_a_late_member},
    {"be_aborted", be_aborted},
    {"lose_the_other", lose_the_other},
};

#define CASE(name) cmocka_unit_test_setup(name, harness_set_up)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(devices_on_one_core_share_a_carrier),
        CASE(fiber_and_threaded_runs_stay_in_order),
        CASE(a_gang_runs_on_fibers_of_the_callers_thread),
        CASE(unfinished_fibers_continue_when_a_late_member_comes),
        CASE(a_gang_on_fibers_can_be_aborted),
        CASE(a_gang_on_fibers_names_a_killed_member),
    };
    return gang_main(argc, argv, PARTS, TOW_COUNT_OF(PARTS), tests,
                     TOW_COUNT_OF(tests));
}
