/* A cluster across the two hosts of a benchmark: the controller and a worker on
 * the first, a worker on the second. Clients run on the first. */
#ifndef TOW_BENCH_HOSTS_CLUSTER_H_
#define TOW_BENCH_HOSTS_CLUSTER_H_

#include "bench/netns.h"

/* The token and the certificate, for the address of the first host. */
#define TOW_BENCH_KEYS_FOLDER "/mnt/keys" /* in TOW_BENCH_HOST_FOLDER */

#define TOW_BENCH_STREAM_COUNT "2"

/* What carries data between hosts. */
typedef enum tow_bench_lane {
    TOW_BENCH_LANE_TLS,     /* one connection, whatever the machine has */
    TOW_BENCH_LANE_STREAMS, /* with TOW_BENCH_STREAM_COUNT more */
    TOW_BENCH_LANE_TRUSTED, /* UCX on the cable */
} tow_bench_lane_t;

typedef struct tow_bench_cluster {
    tow_subprocess_t controller;
    tow_subprocess_t workers[TOW_BENCH_HOST_COUNT]; /* 4 devices each */
    char address[256];                              /* TOW_ADDRESS=tls:... */
    char *client_environment[8]; /* NULL-terminated; lent to clients */
} tow_bench_cluster_t;

#define TOW_BENCH_CLUSTER_NONE                              \
    ((tow_bench_cluster_t){.controller = {.output_fd = -1}, \
                           .workers = {{.output_fd = -1}, {.output_fd = -1}}})

/* The environment of every process, clients included; NULL-terminated. */
char *const *tow_bench_lane_environment(tow_bench_lane_t lane);

/* Creates the keys, once for all clusters. */
tow_status_t tow_bench_make_keys(void) TOW_MUST_USE;
/* Returns when both workers have joined. */
tow_status_t tow_bench_cluster_start(const tow_bench_hosts_t *hosts,
                                     tow_bench_lane_t lane,
                                     tow_bench_cluster_t *out_cluster)
    TOW_MUST_USE;
/* May be called twice. */
void tow_bench_cluster_stop(tow_bench_cluster_t *cluster);

#endif /* TOW_BENCH_HOSTS_CLUSTER_H_ */
