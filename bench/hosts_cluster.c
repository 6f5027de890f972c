#include "bench/hosts_cluster.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "bench/pair.h"
#include "supervisor/keys.h"

#define DEVICES_PER_WORKER "4"

/* All that depends on the lane: the environment of all processes, clients
 * included. */
static char *const environments[][2] = {
    [TOW_BENCH_LANE_TLS] = {"TOW_DATA_STREAMS=0"},
    [TOW_BENCH_LANE_STREAMS] = {"TOW_DATA_STREAMS=" TOW_BENCH_STREAM_COUNT},
    [TOW_BENCH_LANE_TRUSTED] = {"TOW_DATA_TRUSTED=" TOW_BENCH_HOST_DEVICE},
};

char *const *tow_bench_lane_environment(tow_bench_lane_t lane)
{
    return environments[lane];
}

tow_status_t tow_bench_make_keys(void)
{
    tow_keys_t keys;
    if (mkdir(TOW_BENCH_KEYS_FOLDER, 0700) != 0)
        return TOW_ERRNO(errno, "making " TOW_BENCH_KEYS_FOLDER);
    TOW_RETURN_IF_ERROR(tow_keys_in(TOW_BENCH_KEYS_FOLDER, &keys));
    return tow_keys_make(&keys, tow_bench_host_address(0));
}

static tow_status_t start_controller(const tow_bench_hosts_t *hosts,
                                     tow_bench_lane_t lane,
                                     tow_bench_cluster_t *cluster)
{
    const tow_bench_place_t place = {.hosts = hosts};
    const size_t prefix = strlen("TOW_ADDRESS=");
    char address[64];
    snprintf(address, sizeof(address), "tls:%s:0", tow_bench_host_address(0));
    char *const argv[] = {
        (char *)hosts->program, "controller", "--listen", address, "--keys",
        TOW_BENCH_KEYS_FOLDER,  NULL};
    TOW_RETURN_IF_ERROR(tow_bench_start(&place, argv, environments[lane],
                                        TOW_SUBPROCESS_PIPE,
                                        &cluster->controller));
    memcpy(cluster->address, "TOW_ADDRESS=", prefix);
    return tow_bench_read_line(&cluster->controller, "the controller",
                               cluster->address + prefix,
                               sizeof(cluster->address) - prefix);
}

static tow_status_t start_worker(const tow_bench_hosts_t *hosts,
                                 tow_bench_lane_t lane,
                                 tow_bench_cluster_t *cluster, size_t index)
{
    const tow_bench_place_t place = {
        .hosts = hosts, .index = index, .has_own_cores = true};
    char line[256];
    char *const argv[] = {(char *)hosts->program,
                          "worker",
                          "--controller",
                          strchr(cluster->address, '=') + 1,
                          "--keys",
                          TOW_BENCH_KEYS_FOLDER,
                          "--devices",
                          DEVICES_PER_WORKER,
                          NULL};
    tow_subprocess_t *worker = &cluster->workers[index];
    TOW_RETURN_IF_ERROR(tow_bench_start(&place, argv, environments[lane],
                                        TOW_SUBPROCESS_PIPE, worker));
    return tow_bench_read_line(worker, "a worker", line, sizeof(line));
}

static tow_status_t start(const tow_bench_hosts_t *hosts, tow_bench_lane_t lane,
                          tow_bench_cluster_t *cluster)
{
    TOW_RETURN_IF_ERROR(start_controller(hosts, lane, cluster));
    for (size_t i = 0; i < TOW_BENCH_HOST_COUNT; i++)
        TOW_RETURN_IF_ERROR(start_worker(hosts, lane, cluster, i));
    size_t count = 0;
    cluster->client_environment[count++] = cluster->address;
    cluster->client_environment[count++] =
        "TOW_TOKEN_FILE=" TOW_BENCH_KEYS_FOLDER "/token";
    for (char *const *at = environments[lane]; *at != NULL; at++)
        cluster->client_environment[count++] = *at;
    return TOW_OK;
}

tow_status_t tow_bench_cluster_start(const tow_bench_hosts_t *hosts,
                                     tow_bench_lane_t lane,
                                     tow_bench_cluster_t *out_cluster)
{
    *out_cluster = TOW_BENCH_CLUSTER_NONE;
    tow_status_t status = start(hosts, lane, out_cluster);
    if (status != TOW_OK) tow_bench_cluster_stop(out_cluster);
    return tow_status_annotate(status, "starting a cluster on two hosts");
}

void tow_bench_cluster_stop(tow_bench_cluster_t *cluster)
{
    for (size_t i = 0; i < TOW_BENCH_HOST_COUNT; i++)
        tow_subprocess_kill(&cluster->workers[i]);
    tow_subprocess_kill(&cluster->controller);
}
