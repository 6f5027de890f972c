/* A cluster in memory for the tests of transfers and collectives: workers whose
 * transfer engines are joined, devices that hold bytes, and one queue of all
 * events. A test takes events in order or at random, one at a time. */
#ifndef TOW_DATAFLOW_TRANSFER_TESTING_IMPL_H_
#define TOW_DATAFLOW_TRANSFER_TESTING_IMPL_H_

#include "base/testing.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/list.h"
#include "base/random.h"
#include "dataflow/transfer.h"
#include "dataflow/tuning.h"
#include "env/env.h"

#define WORKERS_MAX 4
#define DEVICES_MAX 8
#define SHARDS_MAX  16
#define PIECES_MAX  (SHARDS_MAX * SHARDS_MAX)

typedef struct transfer_fixture transfer_fixture_t;
typedef struct fixture_worker fixture_worker_t;

/* -- Events ---------------------------------------------------------------- */

typedef struct fixture_event {
    tow_list_t list;
    uint64_t channel; /* events of one channel stay in order; 0: none */
    void (*run)(struct fixture_event *event);
    fixture_worker_t *worker;
    void *object;
    tow_status_t status; /* owned */
    /* Of messages. */
    uint32_t from;
    uint32_t type;
    size_t size;
    uint8_t bytes[];
} fixture_event_t;

/* A worker. */
struct fixture_worker {
    transfer_fixture_t *fixture;
    tow_env_t env;
    tow_driver_t driver;
    tow_device_info_t devices[DEVICES_MAX];
    tow_transfer_engine_t *engine;
    uint32_t process;
    bool is_crashed;
    int quiet_count;
    /* Buffers, regions and shares that exist. */
    int buffer_count;
    int region_count;
    int share_count;
    uint64_t next_region;
    tow_list_t regions;
    tow_list_t buffers;
    uint8_t address[8];
    tow_code_t last_error; /* of a message */
};

struct transfer_fixture {
    tow_list_t events;
    tow_random_t random; /* for the order of events */
    bool is_random;
    bool copies_uploads; /* devices do not use host memory in place */
    bool holds;          /* transfers wait for memory; with a seed, some do */
    fixture_worker_t workers[WORKERS_MAX];
    uint32_t worker_count;
    tow_arena_t arena;
    int message_count;
    int write_count;
    int refuse_write_at; /* the nth fails; 0: none */
    int fail_write_at;   /* the nth fails later */
    /* Writes are shared if possible; with a seed, some of their lanes fail. */
    bool shares_writes;
    bool exports_shares; /* drivers support share_export */
    tow_list_t shares;   /* of fixture_share_t */
    int shared_count;    /* ever */
};

static inline void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

/* False: there is no event. */
bool transfer_fixture_step(transfer_fixture_t *fixture);
size_t transfer_fixture_run(transfer_fixture_t *fixture);

/* -- The env --------------------------------------------------------------- */

typedef struct fixture_region {
    tow_region_t base;
    tow_list_t list;
    tow_region_options_t options;
    tow_closed_t closed;
    bool is_closing;
} fixture_region_t;

fixture_region_t *transfer_fixture_find_region(fixture_worker_t *worker,
                                               uint64_t id);

/* -- Devices --------------------------------------------------------------- */

typedef struct fixture_buffer {
    tow_buffer_t base;
    tow_list_t list;
    uint32_t reference_count;
    tow_buffer_state_t state;
    tow_status_t error;                     /* owned */
    uint8_t *bytes;                         /* owned, or the upload's */
    tow_upload_t *upload;                   /* whose memory it uses */
    tow_buffer_share_t *pending_shares[32]; /* for pending contents */
    size_t share_count;
    tow_copy_t *copies[32]; /* for pending contents */
    size_t copy_count;
} fixture_buffer_t;

fixture_buffer_t *transfer_fixture_buffer(fixture_worker_t *worker,
                                          size_t device,
                                          const tow_shape_t *shape);

extern const tow_driver_ops_t transfer_fixture_driver_ops;

/* Its producer finishes. */
void fixture_buffer_finish(tow_buffer_t *base, const void *bytes);

/* Its producer fails. */
void fixture_buffer_fail(tow_buffer_t *base, tow_status_t take_error);

/* -- The fixture ----------------------------------------------------------- */

void transfer_fixture_open(transfer_fixture_t *fixture, uint32_t worker_count,
                           uint64_t seed);

/* Checks that all transfers have ended and all memory is released. */
void transfer_fixture_close(transfer_fixture_t *fixture);

/* Crashes all processes; only memory of the env and the driver is left. */
void transfer_fixture_crash(transfer_fixture_t *fixture);

/* -- Routes ---------------------------------------------------------------- */

/* The placement of an array: equal parts in order, part p on worker places[p],
 * replicated if there are more places than parts. */
typedef struct layout {
    uint32_t parts[TOW_RANK_MAX];
    size_t place_count;
    uint32_t places[SHARDS_MAX]; /* processes */
} layout_t;

typedef struct plan {
    tow_shape_t whole;
    layout_t from, to;
    tow_route_t routes[WORKERS_MAX];
    tow_piece_t *sends[WORKERS_MAX];
    tow_piece_t *receives[WORKERS_MAX];
    uint32_t devices[WORKERS_MAX][SHARDS_MAX];
    size_t source_counts[WORKERS_MAX];
} plan_t;

uint32_t plan_local_index(const layout_t *layout, size_t shard);

/* Fills the routes of all workers. Each target takes a part from the first
 * shard that has it, or, for a replica, from another. */
void plan_make(plan_t *plan, uint32_t worker_count);
void plan_free(plan_t *plan, uint32_t worker_count);
uint8_t plan_byte_at(uint64_t index, uint64_t salt);

/* The bytes of a shard, computed element by element from the whole array. */
void plan_fill_shard(const plan_t *plan, const layout_t *layout, size_t shard,
                     uint64_t salt, uint8_t *out_bytes);

/* -- Exchanges: one transfer, on all its workers --------------------------- */

typedef struct exchange_part {
    tow_transfer_t transfer;
    struct exchange *exchange;
    bool is_begun;
    bool is_done;
    int sized_count; /* calls of `sized` */
    tow_code_t code;
    char message[256];
    tow_buffer_t *sources[SHARDS_MAX];
    tow_buffer_t *targets[SHARDS_MAX];
} exchange_part_t;

typedef struct exchange {
    transfer_fixture_t *fixture;
    const plan_t *plan;
    uint64_t salt;
    exchange_part_t parts[WORKERS_MAX];
} exchange_t;

void exchange_done(tow_transfer_t *transfer, tow_status_t take_status);

/* Sources are pending buffers. */
void exchange_init(exchange_t *exchange, transfer_fixture_t *fixture,
                   const plan_t *plan, uint64_t gang);
tow_status_t exchange_start(exchange_t *exchange, uint32_t process);

/* Completes source shard `shard` of the array. */
void exchange_produce(exchange_t *exchange, size_t shard);
void exchange_expect_bytes(const exchange_t *exchange);

/* Releases all buffers. A producer that has not finished fails. */
void exchange_release(exchange_t *exchange);

#endif /* TOW_DATAFLOW_TRANSFER_TESTING_IMPL_H_ */
