/* Test fixture of the blocking layer: processes with a net on a thread of its
 * own, arenas that stand for hosts, and member threads. For tests and
 * benchmarks only. */
#ifndef TOW_COLLECTIVE_MULTI_HOST_FIXTURE_TESTING_IMPL_H_
#define TOW_COLLECTIVE_MULTI_HOST_FIXTURE_TESTING_IMPL_H_

#include <pthread.h> /* tow-allow: a test of threads */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "collective/multi_host/multi_host.h"
#include "collective/multi_host/tuning.h"
#include "env/net/net.h"

enum {
    TEST_PROCESS_COUNT_MAX = 6,
    TEST_MEMBER_COUNT_MAX = 12,
};

static inline void test_must(tow_status_t status)
{
    if (status == TOW_OK) return;
    fprintf(stderr, "%s\n", tow_status_message(status));
    abort();
}

static inline void test_thread_start(pthread_t *thread, void *(*run)(void *),
                                     void *argument)
{
    int error;
    error = pthread_create(thread, NULL, run, argument); /* tow-allow: test */
    if (error != 0) abort();
}

/* -- A process ------------------------------------------------------------- */

typedef struct test_process {
    tow_net_t *net;
    tow_intra_host_t *host;
    tow_multi_host_t *span;
    pthread_t loop;
    bool is_running;
    bool is_closed;
} test_process_t;

typedef struct test_process_options {
    const char *arena;
    uint32_t process_id;
    uint32_t device_count;
    uint64_t host_id;
    tow_write_check_t check;
} test_process_options_t;

static tow_security_t test_security = {.has_token = true};

static inline void test_process_open(test_process_t *process,
                                     const test_process_options_t *options)
{
    *process = (test_process_t){0};
    test_must(
        tow_net_create(&(tow_net_options_t){.name = "node",
                                            .security = &test_security,
                                            .log = {.level = TOW_LOG_ERROR},
                                            .data_plane = TOW_NET_DATA_UCX},
                       &process->net));
    int64_t ids[TEST_MEMBER_COUNT_MAX];
    for (uint32_t i = 0; i < options->device_count; i++)
        ids[i] =
            (int64_t)options->process_id * TOW_XLA_PROCESS_STRIDE + (int64_t)i;
    test_must(tow_intra_host_open(
        &(tow_intra_host_options_t){.arena = options->arena,
                                    .device_ids = ids,
                                    .device_count = options->device_count},
        &process->host));
    test_must(tow_multi_host_open(
        &(tow_multi_host_options_t){.env = tow_net_env(process->net),
                                    .host = process->host,
                                    .process_id = options->process_id,
                                    .device_count = options->device_count,
                                    .host_id = options->host_id,
                                    .check = options->check},
        &process->span));
}

static inline void *test_loop_main(void *argument)
{
    tow_net_run(((test_process_t *)argument)->net);
    return NULL;
}

static inline void test_process_run(test_process_t *process)
{
    process->is_running = true;
    test_thread_start(&process->loop, test_loop_main, process);
}

static inline void test_process_stop(test_process_t *process)
{
    if (!process->is_running) return;
    process->is_running = false;
    tow_net_stop(process->net);
    pthread_join(process->loop, NULL);
}

static inline void test_note_closed(void *context)
{
    ((test_process_t *)context)->is_closed = true;
}

static inline void test_process_close(test_process_t *process)
{
    test_process_stop(process);
    tow_multi_host_close(process->span,
                         (tow_closed_t){test_note_closed, process});
    while (!process->is_closed)
        tow_net_turn(process->net, TOW_NS_PER_MS);
    tow_intra_host_close(process->host);
    tow_net_destroy(process->net);
}

/* -- A member -------------------------------------------------------------- */

typedef struct test_member {
    pthread_t thread;
    test_process_t *process;
    tow_xla_collective_t collective;
    const void *send[TEST_MEMBER_COUNT_MAX];
    void *receive[TEST_MEMBER_COUNT_MAX];
    size_t target;
    int code;
    char error[300];
} test_member_t;

static inline void *test_member_main(void *argument)
{
    test_member_t *member = argument;
    member->collective.struct_size = sizeof(member->collective);
    member->collective.send = member->send;
    member->collective.receive = member->receive;
    member->error[0] = '\0';
    member->code =
        tow_multi_host_collective(member->process->span, &member->collective,
                                  member->error, sizeof(member->error));
    return NULL;
}

static inline void test_member_start(test_member_t *member)
{
    test_thread_start(&member->thread, test_member_main, member);
}

/* -- Arenas ---------------------------------------------------------------- */

static inline void test_arena_name(char *name, size_t capacity, int host)
{
    snprintf(name, capacity, "/tow-span-test-%d-%d", (int)getpid(), host);
}

/* -- Transports ------------------------------------------------------------ */

static inline void test_use_shm(void)
{
    unsetenv("UCX_TLS");
    unsetenv("UCX_NET_DEVICES");
}

static inline void test_use_tcp(void)
{
    setenv("UCX_TLS", "tcp,self", 1);
    setenv("UCX_NET_DEVICES", "lo", 1);
}

/* -- Another process ------------------------------------------------------- */

/* A process's self-description, sent through a pipe. */
typedef struct test_card {
    tow_multi_host_peer_t peer;
    uint8_t address[2048];
} test_card_t;

static inline void test_send_card(int fd, const test_process_t *process)
{
    test_card_t card = {.peer = tow_multi_host_self(process->span)};
    if (card.peer.lane_address_size > sizeof(card.address)) abort();
    memcpy(card.address, card.peer.lane_address, card.peer.lane_address_size);
    if (write(fd, &card, sizeof(card)) != sizeof(card)) abort();
}

static inline void test_read_whole(int fd, void *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        const ssize_t count = read(fd, (char *)bytes + done, size - done);
        if (count <= 0) _exit(3); /* The other process has ended. */
        done += (size_t)count;
    }
}

static inline void test_add_card(int fd, test_process_t *process)
{
    test_card_t card;
    test_read_whole(fd, &card, sizeof(card));
    card.peer.lane_address = card.address;
    test_must(tow_multi_host_add_peer(process->span, &card.peer));
}

#endif /* TOW_COLLECTIVE_MULTI_HOST_FIXTURE_TESTING_IMPL_H_ */
