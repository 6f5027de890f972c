/* A fixture to test drivers in: one loop and one driver of the kind under test.
 *
 * The suite uses this header. Each subject_*.c describes a driver, and makes a
 * program of the same tests. A test of what the driver does not support is
 * skipped with the reason.
 *
 * A test that fails leaves by longjmp; its fixture is abandoned. */
#ifndef TOW_TESTS_CONFORMANCE_DEVICE_WORLD_H_
#define TOW_TESTS_CONFORMANCE_DEVICE_WORLD_H_

#include "base/testing.h"

#include <stdbool.h>

#include "device/device.h"

/* The programs of a subject. All arrays are f32[4], except the result of FAIL
 * and those of LARGE. */
typedef enum program {
    PROGRAM_ADD,    /* adds its two arguments */
    PROGRAM_DONATE, /* the same, into the first one's memory if it may */
    PROGRAM_LARGE,  /* as DONATE, of f32[LARGE_COUNT] */
    PROGRAM_FAIL,   /* of one argument: runs and fails, in a small memory */
    PROGRAM_AFTER,  /* takes the result of FAIL, gives f32[4] */
    PROGRAM_LONG,   /* of one argument: takes minutes, unless it is aborted */
    PROGRAM_MALFORMED,
    PROGRAM_COUNT,
} program_t;

#define SMALL_MEMORY_BYTES (1u << 20)
#define LARGE_COUNT        65536
#define LARGE_SHAPE        "f32[65536]"

typedef struct subject {
    const char *name; /* of the driver */
    bool computes;    /* results have the right values */
    bool shares_host; /* device memory may be the host's */
    /* And large shares and deferred uploads need no copy. */
    bool shares_in_place;
    uint64_t add_ns; /* the device time of ADD on one device; 0: varies */
    tow_program_format_t format;
    const char *programs[PROGRAM_COUNT]; /* NULL: none */
    /* Starts to open a driver; calls fixture_opened now or later. `why_not` is
     * NULL, or returns why the subject cannot be tested here. */
    void (*open)(tow_env_t *env, size_t device_count, uint64_t memory_bytes);
    const char *(*why_not)(void);
} subject_t;

extern const subject_t subject;

void fixture_opened(tow_status_t take_status, tow_driver_t *take_driver);

/* -- Opening and closing ---------------------------------------------------- */

int fixture_set_up(void **state);
int fixture_tear_down(void **state);

/* Opens a driver; the test closes it. */
tow_driver_t *fixture_open(size_t device_count);
tow_driver_t *fixture_open_small(void); /* SMALL_MEMORY_BYTES */
void fixture_close(tow_driver_t *driver);
/* The same in two steps. */
void fixture_begin_close(tow_driver_t *driver);
bool fixture_is_closed(void);
void fixture_end_close(void);
tow_env_t *fixture_env(void);

/* For a test that has nothing open and ends well without fixture_close. */
void fixture_end(void);
/* Skips a test that has nothing open. */
TOW_NORETURN void fixture_skip(const char *reason);
/* Skips the test unless the subject has it. */
void fixture_require(program_t program);
/* Closes the driver and skips the test unless it `can`. */
void fixture_require_of(tow_driver_t *driver, bool can, const char *reason);

/* -- Turning ---------------------------------------------------------------- */

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
/* A few turns in which nothing should happen. */
void fixture_settle(void);

/* -- Operations ------------------------------------------------------------- */

/* Of each, how often `done` ran and with what. They fail the test if `done`
 * runs inside the call that started them. */
typedef struct outcome {
    bool is_in_call;
    int done_count;
    tow_status_t status; /* owned */
} outcome_t;

typedef struct options_bytes {
    uint8_t data[256];
    size_t size;
} options_bytes_t;

typedef struct compile_probe {
    tow_compile_t compile;
    outcome_t outcome;
    options_bytes_t options;
    tow_executable_t *executable;
} compile_probe_t;

typedef struct upload_probe {
    tow_upload_t upload;
    outcome_t outcome;
} upload_probe_t;

typedef struct download_probe {
    tow_download_t download;
    outcome_t outcome;
} download_probe_t;

typedef struct share_probe {
    tow_buffer_share_t share;
    outcome_t outcome;
} share_probe_t;

typedef struct copy_probe {
    tow_copy_t copy;
    outcome_t outcome;
} copy_probe_t;

#define PROBE_ARRAY_COUNT_MAX 16

typedef struct run_probe {
    tow_run_t run;
    outcome_t outcome;
    tow_buffer_t *arguments[PROBE_ARRAY_COUNT_MAX];
    tow_buffer_t *results[PROBE_ARRAY_COUNT_MAX];
    int sequence; /* the order of completion in this test */
} run_probe_t;

tow_status_t probe_compile(compile_probe_t *probe, tow_driver_t *driver,
                           const char *program, size_t device_count);
tow_status_t probe_load(compile_probe_t *probe, tow_driver_t *driver,
                        const void *bytes, size_t size);
/* The same, onto the driver's device of this index. */
tow_status_t probe_load_on(compile_probe_t *probe, tow_driver_t *driver,
                           const void *bytes, size_t size, size_t device);
tow_status_t probe_upload(upload_probe_t *probe, tow_driver_t *driver,
                          size_t device, const char *shape, const void *bytes);
tow_status_t probe_download(download_probe_t *probe, tow_buffer_t *buffer,
                            void *bytes, size_t size);
/* Of a deferred upload. */
void probe_settle(upload_probe_t *probe, const void *bytes,
                  tow_status_t take_status);
tow_status_t probe_share(share_probe_t *probe, tow_buffer_t *buffer);
tow_status_t probe_copy(copy_probe_t *probe, tow_buffer_t *source,
                        size_t device);
/* The arguments are in the probe. */
tow_status_t probe_run(run_probe_t *probe, tow_executable_t *executable,
                       size_t argument_count);
/* Waits for `done`; fails the test unless it has this code. Releases the
 * status. */
void outcome_expect(outcome_t *outcome, tow_code_t code);

/* -- The same, awaited and successful --------------------------------------- */

tow_executable_t *compiled(tow_driver_t *driver, program_t program);
tow_executable_t *compiled_for(tow_driver_t *driver, program_t program,
                               size_t device_count);
tow_buffer_t *uploaded(tow_driver_t *driver, size_t device,
                       const float values[4]);
/* Expects equal values. */
void expect_values(tow_buffer_t *buffer, float value);
/* Fails the test unless the call was refused so; takes the status. */
void expect_refusal(tow_status_t take_status, tow_code_t code,
                    const char *words);
void expect_ok(tow_status_t take_status);

/* A CompileOptionsProto for replicas on the driver's devices from first_device
 * on. */
options_bytes_t options_pack(const tow_driver_t *driver, size_t first_device,
                             size_t device_count);

/* -- Suites ----------------------------------------------------------------- */

typedef struct suite {
    const struct CMUnitTest *tests;
    size_t test_count;
} suite_t;

#define FIXTURE_CASE(name) \
    cmocka_unit_test_setup_teardown(name, fixture_set_up, fixture_tear_down)
#define FIXTURE_SUITE(name, ...)                                   \
    static const struct CMUnitTest name##_tests[] = {__VA_ARGS__}; \
    const suite_t name = {.tests = name##_tests,                   \
                          .test_count = TOW_COUNT_OF(name##_tests)}

extern const suite_t close_suite;
extern const suite_t compile_suite;
extern const suite_t copy_suite;
extern const suite_t error_suite;
extern const suite_t gang_suite;
extern const suite_t deferred_suite;
extern const suite_t share_suite;
extern const suite_t optional_suite;
extern const suite_t run_suite;
extern const suite_t time_suite;
extern const suite_t transfer_suite;

#endif /* TOW_TESTS_CONFORMANCE_DEVICE_WORLD_H_ */
