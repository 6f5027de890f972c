/* A fixture to test compilers in: one loop, one compiler of the kind under
 * test, and jobs that record their results. */
#ifndef TOW_TESTS_CONFORMANCE_COMPILER_WORLD_H_
#define TOW_TESTS_CONFORMANCE_COMPILER_WORLD_H_

#include "base/testing.h"

#include <stdbool.h>
#include <string.h>

#include "device/compiler/compiler.h"

int fixture_set_up(void **state);
int fixture_tear_down(void **state);
tow_env_t *fixture_env(void);

/* Fails the test, naming the condition, after a time limit that only prevents
 * hanging. */
#define FIXTURE_UNTIL(condition)           \
    do {                                   \
        fixture_wait_begin();              \
        while (!(condition))               \
            fixture_wait_step(#condition); \
    } while (0)
void fixture_wait_begin(void);
void fixture_wait_step(const char *condition);

/* Closes it and waits. */
void fixture_close(tow_compiler_t *compiler);
/* The same in two steps. */
void fixture_begin_close(tow_compiler_t *compiler);
bool fixture_is_closed(void);

typedef struct job {
    tow_compile_job_t job;
    bool is_in_call;
    int done_count;
    int sequence;             /* the order of completion in this test */
    tow_status_t status;      /* owned */
    tow_compiled_t *compiled; /* owned */
} job_t;

/* Submits, and fails the test unless that is the result. The program is one of
 * the subject's format, unless the job says another. */
void job_submit(job_t *job, tow_compiler_t *compiler, const char *program,
                tow_submit_result_t result);
/* Waits; fails the test unless it ended so. Frees the result. */
void job_expect(job_t *job, tow_code_t code, const char *words);
/* Both, for a program that compiles or does not. */
void expect_compiles(tow_compiler_t *compiler, const char *program);
void expect_fails(tow_compiler_t *compiler, const char *program,
                  tow_code_t code, const char *words);
void expect_ok(tow_status_t take_status);

#define FIXTURE_CASE(name) \
    cmocka_unit_test_setup_teardown(name, fixture_set_up, fixture_tear_down)

#endif /* TOW_TESTS_CONFORMANCE_COMPILER_WORLD_H_ */
