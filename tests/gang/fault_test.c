/* Gangs that fail: aborted, with a member killed, with a member frozen. Every
 * member that is left gets an error that says why, and stays usable. */
#include "gang.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

/* Programs of every gang here. */
enum {
    SUM,     /* over all four */
    ENDLESS, /* two collectives again and again */
    OWN_SUM, /* over the process's own two */
};

/* Collectives after which a run is surely in progress. */
#define MANY 200

static void open_with_programs(gang_t *gang)
{
    /* clang-format off */
    static const char sum[] = FUNCTION(
        ALL_REDUCE("%0", "%a", "add", GROUPS_ALL, CHANNEL("1"))
        "return %0 : tensor<4xf32>\n");
    static const char endless[] = LOOP("2000000000",
        ALL_REDUCE("%p", "%v", "add", GROUPS_PAIRS, "")
        ALL_REDUCE("%q", "%p", "add", GROUPS_ACROSS, "") QUARTER);
    static const char own_sum[] = FUNCTION(
        ALL_REDUCE("%0", "%a", "add", GROUPS_TWO, CHANNEL("1"))
        "return %0 : tensor<4xf32>\n");
    /* clang-format on */
    gang_open(gang);
    gang_add_program(gang, sum, MEMBER_COUNT);
    gang_add_program(gang, endless, MEMBER_COUNT);
    gang_add_program(gang, own_sum, DEVICES_EACH);
}

static void sum_of_all(process_t *process, PJRT_LoadedExecutable *sum,
                       uint64_t run_id)
{
    call_t call = start(process, sum, run_id);
    finish(&call, 10, 50, 90, 130);
}

/* Ranks i and i + 2 are ours: the sum is 2 i + 4, and so on by twenties. */
static void sums_of_our_own(process_t *process, uint64_t first_run_id)
{
    PJRT_LoadedExecutable *own = load(process, OWN_SUM);
    const float first = (float)(2 * process->index + 4);
    for (uint64_t run = 0; run < 20; run++) {
        call_t call = start(process, own, first_run_id + run);
        finish(&call, first, first + 20, first + 40, first + 60);
    }
    unload(own);
}

/* -- Aborts ---------------------------------------------------------------- */

/* One process waits in a collective; the other aborts the run and only then
 * joins it. */
static void abort_while_members_wait(process_t *process)
{
    PJRT_LoadedExecutable *sum = load(process, SUM);
    for (uint64_t round = 0; round < 6; round++) {
        const uint64_t run_id = 100 + 2 * round;
        const size_t waiting = round % PROCESS_COUNT;
        if (process->index != waiting) {
            await_inside(process, waiting, DEVICES_EACH);
            tow_intra_host_abort(process->host, run_id, TOW_CANCELLED,
                                 "the client has left");
        }
        call_t call = start(process, sum, run_id);
        finish_failed(&call, 1, PJRT_Error_Code_CANCELLED,
                      "the client has left");
        /* Consume the posts of the late members before the next round. */
        meet(process);
        if (process->index == waiting)
            await_inside(process, 1 - waiting, DEVICES_EACH);
        meet(process);
        sum_of_all(process, sum, run_id + 1);
        await_inside(process, process->index, DEVICES_EACH);
        meet(process);
    }
    unload(sum);
}

/* All are in a loop of collectives, each in another iteration. */
static void abort_in_the_middle(process_t *process)
{
    PJRT_LoadedExecutable *sum = load(process, SUM);
    PJRT_LoadedExecutable *endless = load(process, ENDLESS);
    for (uint64_t round = 0; round < 4; round++) {
        call_t call = start(process, endless, 500 + 2 * round);
        if (process->index == round % PROCESS_COUNT) {
            await_inside(process, process->index, MANY);
            tow_intra_host_abort(process->host, 500 + 2 * round, TOW_ABORTED,
                                 "enough of this");
        }
        finish_failed(&call, 1, PJRT_Error_Code_ABORTED, "enough of this");
        sum_of_all(process, sum, 501 + 2 * round);
    }
    unload(endless);
    unload(sum);
}

static void run_gang(const char *part)
{
    gang_t gang;
    open_with_programs(&gang);
    gang_start(&gang, part);
    gang_close(&gang);
}

static void every_member_of_an_aborted_gang_gets_the_error(void **state)
{
    run_gang("abort_while_members_wait");
}

static void a_gang_can_be_aborted_in_the_middle(void **state)
{
    run_gang("abort_in_the_middle");
}

/* -- Killed and frozen members --------------------------------------------- */

enum {
    SURVIVOR = 0,
    VICTIM = 1,
};

/* The error names one of the process's devices. */
static void fail_and_name(call_t *call, size_t process)
{
    for (size_t i = 0; i < DEVICES_EACH; i++) {
        failure_t failure = failure_of(try_await(call->done[i]));
        assert_int_equal(failure.code, PJRT_Error_Code_UNAVAILABLE);
        char names[DEVICES_EACH][32];
        for (size_t k = 0; k < DEVICES_EACH; k++)
            snprintf(names[k], sizeof(names[k]), "device %lld",
                     (long long)device_id_of(process, k));
        if (strstr(failure.message, names[0]) == NULL &&
            strstr(failure.message, names[1]) == NULL)
            fail_msg("neither %s nor %s is in: %s", names[0], names[1],
                     failure.message);
        destroy(call->outputs[i][0]);
    }
}

static void lose_the_other(process_t *process)
{
    PJRT_LoadedExecutable *endless = load(process, ENDLESS);
    call_t call = start(process, endless, 1);
    fail_and_name(&call, 1 - process->index);
    sums_of_our_own(process, 100);
    /* A run with the lost process fails again, and does not hang. */
    call = start(process, endless, 2);
    fail_and_name(&call, 1 - process->index);
    sums_of_our_own(process, 200);
    unload(endless);
}

static void a_killed_member_is_named_and_the_others_go_on(void **state)
{
    gang_t gang;
    open_with_programs(&gang);
    gang_start(&gang, "lose_the_other");
    gang_await_inside(&gang, VICTIM, MANY);
    kill(gang.processes[VICTIM], SIGKILL);
    int status = 0;
    assert_int_equal(waitpid(gang.processes[VICTIM], &status, 0),
                     gang.processes[VICTIM]);
    assert_true(WIFSIGNALED(status));
    gang.processes[VICTIM] = 0;
    gang_close(&gang);
}

/* The victim resumes after the survivor's run has failed, gets the error of
 * that run and takes part in the next one. */
static void freeze_and_thaw(process_t *process)
{
    PJRT_LoadedExecutable *sum = load(process, SUM);
    PJRT_LoadedExecutable *endless = load(process, ENDLESS);
    call_t call = start(process, endless, 1);
    if (process->index == SURVIVOR) {
        fail_and_name(&call, VICTIM);
        sums_of_our_own(process, 100);
        set_mark(process);
    } else {
        finish_failed(&call, 1, PJRT_Error_Code_UNAVAILABLE, "device ");
    }
    meet(process);
    for (uint64_t run = 0; run < 20; run++)
        sum_of_all(process, sum, 300 + run);
    unload(endless);
    unload(sum);
}

static void a_frozen_member_is_named_and_may_come_back(void **state)
{
    gang_t gang;
    open_with_programs(&gang);
    gang_start(&gang, "freeze_and_thaw");
    gang_await_inside(&gang, VICTIM, MANY);
    kill(gang.processes[VICTIM], SIGSTOP);
    const bool has_failed = gang_try_await_mark(&gang);
    kill(gang.processes[VICTIM], SIGCONT);
    assert_true(has_failed);
    gang_close(&gang);
}

static const part_t PARTS[] = {
    {"abort_while_members_wait", abort_while_members_wait},
    {"abort_in_the_middle", abort_in_the_middle},
    {"lose_the_other", lose_the_other},
    {"freeze_and_thaw", freeze_and_thaw},
};

#define CASE(name) cmocka_unit_test_setup(name, harness_set_up)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(every_member_of_an_aborted_gang_gets_the_error),
        CASE(a_gang_can_be_aborted_in_the_middle),
        CASE(a_killed_member_is_named_and_the_others_go_on),
        CASE(a_frozen_member_is_named_and_may_come_back),
    };
    return gang_main(argc, argv, PARTS, TOW_COUNT_OF(PARTS), tests,
                     TOW_COUNT_OF(tests));
}
