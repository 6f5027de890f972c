/* A simulated cluster for the worker's tests: a controller that sends the
 * messages that a test asks for and records those that it receives, one worker
 * with simulated devices, and a client with a region. */
#ifndef TOW_WORKER_WORKER_TESTING_IMPL_H_
#define TOW_WORKER_WORKER_TESTING_IMPL_H_

#include "base/testing.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "device/options.h"
#include "device/sim/sim_device.h"
#include "env/sim/sim.h"
#include "worker/worker.h"

#define DEVICES      2
#define MEMORY_BYTES (64u << 20)
#define FIRST_ID     2048 /* of process 1 */
#define REGION_BYTES (1u << 20)
#define RECEIVED_MAX 64
#define CLUSTER      77

#define SECOND 1000000000ll

/* The messages that the controller received, by type. */
typedef struct worker_received {
    int arrived_count; /* sessions */
    int session_end_count;
    tow_code_t session_end_code;
    char session_end_message[512];
    int join_count;
    uint32_t join_process;
    char join_host[64];
    size_t join_devices;
    int done_count; /* messages */
    uint64_t runs[RECEIVED_MAX];
    size_t run_count;
    tow_device_time_t time; /* of all reports, of those by relays, too */
    struct {
        uint64_t run;
        uint32_t node;
        tow_code_t code;
        char message[256];
    } failures[RECEIVED_MAX];
    size_t failure_count;
    uint64_t progress_run; /* the last */
    uint32_t progress_end;
    int progress_count;
    int load_count;
    uint64_t load_executable;
    tow_code_t load_code;
    int opened_count;
    tow_region_key_t targets[DEVICES];
    size_t target_count;
    uint8_t address[TOW_LANE_ADDRESS_MAX];
    size_t address_size;
    int put_count;
    uint64_t put_object;
    tow_code_t put_code;
    char put_message[256];
    int get_count;
    uint64_t get_request;
    tow_code_t get_code;
    char get_message[256];
    uint8_t get_bytes[256];
    size_t get_size;
    int spill_count; /* replies to spills and unspills */
    uint64_t spill_object, spill_number;
    bool spill_is_back;
    tow_code_t spill_code;
    char spill_message[256];
    int report_count;
    tow_code_t report_code;
    char *report_text; /* owned */
    size_t wait_count, wait_missing_count;
    uint64_t wait_gang;
    /* As a relay. */
    uint64_t complete_runs[RECEIVED_MAX]; /* reported by all members */
    size_t complete_count;
    uint64_t part_runs[RECEIVED_MAX];
    uint32_t part_processes[RECEIVED_MAX];
    uint32_t part_ends[RECEIVED_MAX]; /* 0: succeeded */
    size_t part_count;
    uint64_t least_run; /* progress of all members; the last */
    uint32_t least_end;
    int least_count;
    uint32_t relay_disconnected_process;
    int relay_disconnected_count;
    int callback_count;
    uint64_t callback_run, callback_call, callback_function;
    char callback_text[64]; /* its arguments */
    int peer_added_count, peer_disconnected_count;
    tow_worker_peer_t peer;
    int joined_count, disconnected_count;
} worker_received_t;

typedef struct worker_fixture {
    uint64_t seed;              /* 0: a network without faults */
    const char *listen_address; /* for other workers; NULL: none */
    tow_sim_t *sim;
    tow_sim_node_t *controller;
    tow_sim_node_t *worker_node;
    tow_sim_node_t *client;
    tow_env_t *controller_env;
    tow_env_t *client_env;
    tow_session_port_t *port;
    tow_session_t *session; /* NULL: none */
    tow_arena_t arena;
    worker_received_t received;
    bool refuses;   /* the next worker that joins */
    bool is_silent; /* does not answer a join */
    /* In the worker's process. */
    tow_driver_t *driver;
    tow_worker_t *worker;
    tow_worker_limits_t limits;
    bool is_closed;
    /* In the client's process. */
    tow_region_t *region;
    uint8_t *memory;
    int arrived_count;
    tow_arrival_t arrival;
    tow_lane_t *lane;
    tow_write_t write;
    tow_code_t write_code;
    int written_count;
} worker_fixture_t;

static inline void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

void worker_fixture_run_for(worker_fixture_t *fixture, int64_t span_ns);

static inline void expect_part(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("'%s' has no '%s'", text, part);
}

/* -- The controller -------------------------------------------------------- */

void worker_fixture_send(worker_fixture_t *fixture, uint32_t type,
                         const tow_body_t *body);
uint64_t worker_fixture_send_blob(worker_fixture_t *fixture, const void *bytes,
                                  size_t size);
void worker_fixture_listen(worker_fixture_t *fixture);

/* -- The client ------------------------------------------------------------ */

void worker_fixture_lane_down(void *context, tow_lane_t *lane,
                              tow_status_t cause);
void worker_fixture_write_done(tow_write_t *write, tow_status_t take_status);

/* Writes to target `index` of the last ShardPutOpened. */
void worker_fixture_client_write(worker_fixture_t *fixture, size_t index,
                                 const void *bytes, size_t size,
                                 uint64_t offset);

/* -- The simulated cluster ------------------------------------------------- */

void worker_fixture_open(worker_fixture_t *fixture, tow_worker_limits_t limits);
void worker_fixture_join(worker_fixture_t *fixture, tow_worker_limits_t limits);

/* No state of any session is left. */
void worker_fixture_expect_empty(const worker_fixture_t *fixture);

/* Closes the worker, which must free everything. */
void worker_fixture_close(worker_fixture_t *fixture);

/* -- Messages of the controller -------------------------------------------- */

/* A serialised simulated executable is the cost program itself. */
void worker_fixture_send_load(worker_fixture_t *fixture, uint64_t executable,
                              const char *text);

typedef enum fixture_step_kind {
    LEAVES_ARGUMENT,
    CONSUMES_ARGUMENT,
    SEQUENTIAL
} fixture_step_kind_t;

/* argument -> executable -> result; node 1. */
void worker_fixture_send_step(worker_fixture_t *fixture, uint64_t program,
                              uint64_t executable, fixture_step_kind_t kind);
#define CHAIN_STEPS 3
/* argument -> executable -> executable -> executable -> result. */
void worker_fixture_send_chain(worker_fixture_t *fixture, uint64_t program,
                               uint64_t executable);
void worker_fixture_send_program(worker_fixture_t *fixture, uint64_t program,
                                 uint64_t executable);

/* Results are objects 1000 * run, ... */
void worker_fixture_send_grant(worker_fixture_t *fixture, uint64_t run,
                               uint64_t program, uint64_t argument);

/* u8[size] on all devices. */
void worker_fixture_send_put(worker_fixture_t *fixture, uint64_t object,
                             size_t size, const void *bytes, size_t byte_count);
void worker_fixture_send_get(worker_fixture_t *fixture, uint64_t request,
                             uint64_t object, uint32_t shard, bool has_target);
void worker_fixture_send_release(worker_fixture_t *fixture, uint64_t first,
                                 uint32_t count);
void worker_fixture_send_assemble(worker_fixture_t *fixture, uint64_t object,
                                  const uint64_t sources[DEVICES],
                                  uint32_t shard);
void worker_fixture_send_abort(worker_fixture_t *fixture, uint64_t run,
                               const char *why);

#endif /* TOW_WORKER_WORKER_TESTING_IMPL_H_ */
