/* A world to test compilers in: one loop, one compiler of the kind under test,
 * and jobs that note how they ended. */
#ifndef TOW_TESTS_CONFORMANCE_COMPILER_WORLD_H_
#define TOW_TESTS_CONFORMANCE_COMPILER_WORLD_H_

#include "base/testing.h"

#include <stdbool.h>
#include <string.h>

#include "device/compiler/compiler.h"

int world_set_up(void **state);
int world_tear_down(void **state);
tow_env_t *world_env(void);

/* Fails the test, naming the condition, at a bound that is there only to fail
 * instead of to hang. */
#define WORLD_UNTIL(condition)           \
    do {                                 \
        world_wait_begin();              \
        while (!(condition))             \
            world_wait_step(#condition); \
    } while (0)
void world_wait_begin(void);
void world_wait_step(const char *condition);

/* Closes it and waits. */
void world_close(tow_compiler_t *compiler);
/* The same in two steps. */
void world_begin_close(tow_compiler_t *compiler);
bool world_is_closed(void);

typedef struct job {
    tow_compile_job_t job;
    bool is_in_call;
    int done_count;
    int sequence;             /* the how manieth job to end in this test */
    tow_status_t status;      /* owned */
    tow_compiled_t *compiled; /* owned */
} job_t;

/* Submits, and fails the test unless that is the result. The program is one of
 * the subject's format, unless the job says another. */
void job_submit(job_t *job, tow_compiler_t *compiler, const char *program,
                tow_submit_result_t result);
/* Waits; fails the test unless it ended so. Forgets what came out. */
void job_expect(job_t *job, tow_code_t code, const char *words);
/* Both, for a program that compiles or does not. */
void expect_compiles(tow_compiler_t *compiler, const char *program);
void expect_fails(tow_compiler_t *compiler, const char *program,
                  tow_code_t code, const char *words);
void expect_ok(tow_status_t take_status);

#define WORLD_CASE(name) \
    cmocka_unit_test_setup_teardown(name, world_set_up, world_tear_down)

#endif /* TOW_TESTS_CONFORMANCE_COMPILER_WORLD_H_ */
