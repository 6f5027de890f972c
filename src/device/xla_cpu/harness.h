/* Test harness of the adapter: short functions for PJRT's calls. An error that
 * a test does not expect fails it. For test programs only. */
#ifndef TOW_DEVICE_XLA_CPU_HARNESS_H_
#define TOW_DEVICE_XLA_CPU_HARNESS_H_

#include "base/testing.h"

#include "device/xla_cpu/xla_cpu.h"
#include "xla/pjrt/c/pjrt_c_api.h"

/* The adapter under test; TOW_XLA_CPU names the file. */
extern const PJRT_Api *api;
extern const tow_xla_extension_t *extension;

/* Loads the adapter, once per process. False if TOW_XLA_CPU is not set. */
bool harness_load(void);

/* The set-up of a test: the same, but skips the test. */
int harness_set_up(void **state);

/* --- Errors --------------------------------------------------------------- */

typedef struct failure {
    PJRT_Error_Code code;
    char message[4096];
} failure_t;

/* Takes `error`, which may be NULL. */
failure_t failure_of(PJRT_Error *error);

/* Fail the test, with the message, unless the error is the expected one. */
void expect_ok(PJRT_Error *error);
void expect_error(PJRT_Error *error, PJRT_Error_Code code,
                  const char *words_in_message);

/* --- Clients and programs ------------------------------------------------- */

typedef struct client_options {
    int64_t process_id;
    int64_t device_count;
    int64_t memory_limit_bytes;
    const tow_xla_collectives_t *collectives;
    const tow_xla_blocks_t *blocks;
    const tow_xla_calls_t *calls;
} client_options_t;

PJRT_Client *client_open(client_options_t options);
void client_close(PJRT_Client *client);
PJRT_Device *device_at(PJRT_Client *client, size_t index);

typedef struct bytes {
    char data[4096];
    size_t size;
} bytes_t;

/* A CompileOptionsProto. Without devices XLA takes the first ones it has. */
bytes_t options_pack(size_t replica_count, size_t partition_count,
                     const int64_t *devices);
/* Adds an XLA option by name, as jax.jit(compiler_options=) does. */
void options_add_text(bytes_t *options, const char *name, const char *value);
/* Adds an entry to a map among the XLA options, by the map's field number. */
void options_add_entry(bytes_t *options, int field, const char *name,
                       const char *value);

PJRT_Error *try_compile(PJRT_Client *client, const char *text,
                        const bytes_t *options,
                        PJRT_LoadedExecutable **out_executable);
PJRT_LoadedExecutable *compile(PJRT_Client *client, const char *text,
                               const bytes_t *options);
void unload(PJRT_LoadedExecutable *executable);

/* Two vectors of four floats. */
extern const char ADD[];
/* The same, and donates the first argument to the result. */
extern const char ADD_DONATING[];
/* Counts to 300,000 in one vector: tens of milliseconds, and no memory. */
extern const char SLOW[];
extern const float ONES[4];
extern const float COUNT[4]; /* from 1 */

PJRT_Executable *executable_of(PJRT_LoadedExecutable *loaded);
void executable_close(PJRT_Executable *executable);

/* --- Arrays --------------------------------------------------------------- */

PJRT_Error *try_upload(PJRT_Client *client, PJRT_Device *device,
                       PJRT_Buffer_Type type, const void *data,
                       const int64_t *dims, size_t dim_count,
                       PJRT_Buffer **out_buffer);
/* A vector of floats. */
PJRT_Buffer *upload(PJRT_Client *client, PJRT_Device *device,
                    const float *values, size_t count);
/* Waits for the copy, and destroys the event. */
void await(PJRT_Event *event);
PJRT_Error *try_await(PJRT_Event *event);
PJRT_Error *try_download(PJRT_Buffer *buffer, void *out_data, size_t size);
void download(PJRT_Buffer *buffer, void *out_data, size_t size);
/* Fails the test unless these four floats are in it. */
void expect_values(PJRT_Buffer *buffer, float a, float b, float c, float d);
PJRT_Event *ready_event_of(PJRT_Buffer *buffer);
bool is_deleted(PJRT_Buffer *buffer);
void destroy(PJRT_Buffer *buffer);
int64_t bytes_in_use(PJRT_Device *device);

/* --- Executions ----------------------------------------------------------- */

#define HARNESS_DEVICE_COUNT_MAX 4
#define HARNESS_ARRAY_COUNT_MAX  16

typedef struct call {
    PJRT_LoadedExecutable *executable;
    uint64_t run_id;
    uint32_t flags;
    size_t device_count; /* 0: one */
    size_t argument_count;
    PJRT_Buffer *arguments[HARNESS_DEVICE_COUNT_MAX][HARNESS_ARRAY_COUNT_MAX];
    const int64_t *undonated; /* non_donatable_input_indices */
    size_t undonated_count;
    PJRT_Device *device; /* NULL: all of the executable's */
    /* Out: */
    PJRT_Buffer *outputs[HARNESS_DEVICE_COUNT_MAX][HARNESS_ARRAY_COUNT_MAX];
    PJRT_Event *done[HARNESS_DEVICE_COUNT_MAX];
} call_t;

PJRT_Error *try_execute(call_t *call);
/* Calls, waits for all devices and destroys the events. */
void execute(call_t *call);

#endif /* TOW_DEVICE_XLA_CPU_HARNESS_H_ */
