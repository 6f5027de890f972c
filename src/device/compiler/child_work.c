/* tow_compile_child PARENT MEMORY PLUGIN [NAME TYPE VALUE]...: compiles the
 * programs that arrive on descriptor TOW_CHILD_SOCKET_FD, until that is closed
 * or the process PARENT ends. MEMORY limits the bytes of its private memory; 0
 * is no limit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/child/pool.h"
#include "device/compiler/child.h"
#include "device/compiler/direct.h"
#include "device/compiler/protocol_impl.h"
#include "device/compiler/tuning.h"
#include "device/partition_query.h"
#include "device/pjrt/argv.h"
#include "device/pjrt/pjrt.h"
#include "env/net/net.h"

#define ARGC_MIN (TOW_CHILD_ARGC + 1)

typedef struct child {
    tow_security_t security; /* empty: nothing connects */
    tow_net_t *net;
    tow_pjrt_open_t open;
    tow_driver_t *driver;
    tow_compiler_t *compiler;
    tow_compile_job_t job;
    /* The operation in progress. */
    bool is_done;
    tow_status_t status;      /* owned */
    tow_compiled_t *compiled; /* owned */
    /* Partition queries. The thread that compiles uses the socket meanwhile. */
    tow_xla_query_handler_t handler;
    bool may_query; /* the program's client replies */
    tow_child_in_t reply;
    tow_arena_t reply_arena;
} child_t;

/* -- Waiting ---------------------------------------------------------------- */

static tow_status_t await(child_t *child)
{
    while (!child->is_done)
        tow_net_turn(child->net, TOW_TIME_NEVER);
    child->is_done = false;
    return child->status;
}

static void opened(tow_pjrt_open_t *open, tow_status_t take_status,
                   tow_driver_t *take_driver)
{
    child_t *child = TOW_CONTAINER_OF(open, child_t, open);
    child->is_done = true;
    child->status = take_status;
    child->driver = take_driver;
}

static void compiled(tow_compile_job_t *job, tow_status_t take_status,
                     tow_compiled_t *take_compiled)
{
    child_t *child = TOW_CONTAINER_OF(job, child_t, job);
    child->is_done = true;
    child->status = take_status;
    child->compiled = take_compiled;
}

/* -- Partition queries ------------------------------------------------------ */

/* Both block. */
static tow_status_t send_query(const void *bytes, size_t size)
{
    tow_child_out_t out = tow_child_out(&tow_compile_protocol, COMPILE_QUERY);
    tow_child_out_set(&out, QUERY_BYTES, bytes, size);
    if (tow_child_send(TOW_CHILD_SOCKET_FD, &out) == TOW_CHILD_DONE)
        return TOW_OK;
    return TOW_ERROR(TOW_UNAVAILABLE,
                     "a partition query was not sent: the parent process has "
                     "closed the socket");
}

static tow_status_t receive_reply(child_t *child,
                                  tow_xla_partition_reply_t *out_reply)
{
    tow_child_in_t *in = &child->reply;
    tow_child_in_reset(in);
    tow_arena_reset(&child->reply_arena);
    if (tow_child_receive(TOW_CHILD_SOCKET_FD, &tow_compile_protocol, in) !=
            TOW_CHILD_DONE ||
        in->header.type != COMPILE_ANSWER)
        return TOW_ERROR(TOW_UNAVAILABLE,
                         "no reply to a partition query: the parent process "
                         "has closed the socket");
    TOW_RETURN_IF_ERROR(tow_child_in_status(in));
    return tow_partition_reply_unpack(
        (tow_bytes_t){in->parts[QUERY_BYTES],
                      (size_t)in->header.sizes[QUERY_BYTES]},
        &child->reply_arena, out_reply);
}

static tow_status_t put_query(child_t *child,
                              const tow_xla_partition_query_t *query,
                              tow_xla_partition_reply_t *out_reply)
{
    void *bytes;
    size_t size;
    if (!child->may_query)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "the program has a partitioned custom call '%s', but "
                         "its client did not announce partition queries",
                         query->target);
    TOW_RETURN_IF_ERROR(tow_partition_query_pack(query, &bytes, &size));
    tow_status_t status = send_query(bytes, size);
    tow_free(bytes);
    if (status != TOW_OK) return status;
    return receive_reply(child, out_reply);
}

static int query_client(void *context, const tow_xla_partition_query_t *query,
                        tow_xla_partition_reply_t *out_reply, char *error,
                        size_t error_capacity)
{
    tow_status_t status = put_query(context, query, out_reply);
    const tow_code_t code = tow_status_code(status);
    if (status != TOW_OK)
        snprintf(error, error_capacity, "%s", tow_status_message(status));
    tow_status_release(status);
    return (int)code;
}

/* -- Compiling -------------------------------------------------------------- */

static tow_status_t open_compiler(child_t *child)
{
    const tow_net_options_t net = {
        .name = "compiler", .security = &child->security, .spin_ns = -1};
    const tow_direct_compiler_options_t direct = {0};
    TOW_RETURN_IF_ERROR(tow_net_create(&net, &child->net));
    child->open.done = opened;
    TOW_RETURN_IF_ERROR(tow_pjrt_open(tow_net_env(child->net), &child->open));
    TOW_RETURN_IF_ERROR(await(child));
    tow_arena_init(&child->reply_arena, 0);
    child->handler =
        (tow_xla_query_handler_t){.struct_size = sizeof(child->handler),
                                  .context = child,
                                  .query = query_client};
    tow_pjrt_set_query_handler(child->driver, &child->handler);
    return tow_direct_compiler_create(child->driver, &direct, &child->compiler);
}

static tow_status_t compile(child_t *child, const tow_child_in_t *request)
{
    const char *kind = request->parts[REQUEST_KIND];
    child->may_query = (request->header.flags & COMPILE_MAY_QUERY) != 0;
    child->job = (tow_compile_job_t){
        .format = (tow_program_format_t)request->header.value,
        .program = {request->parts[REQUEST_PROGRAM],
                    (size_t)request->header.sizes[REQUEST_PROGRAM]},
        .options = {request->parts[REQUEST_OPTIONS],
                    (size_t)request->header.sizes[REQUEST_OPTIONS]},
        .device_kind = kind[0] != '\0' ? kind : NULL,
        .done = compiled,
    };
    const tow_submit_result_t result =
        tow_compiler_submit(child->compiler, &child->job);
    TOW_ASSERT(result == TOW_SUBMIT_OK); /* It is the only job. */
    return await(child);
}

/* -- Replies ---------------------------------------------------------------- */

static bool send_ready(tow_status_t take_status)
{
    tow_child_out_t out = tow_child_out(&tow_compile_protocol, COMPILE_READY);
    tow_child_out_set_status(&out, take_status);
    const bool is_sent =
        tow_child_send(TOW_CHILD_SOCKET_FD, &out) == TOW_CHILD_DONE;
    tow_status_release(take_status);
    return is_sent && out.header.code == TOW_CODE_OK;
}

static bool send_compiled(tow_status_t take_status,
                          const tow_compiled_t *result)
{
    void *signature = NULL;
    size_t size = 0;
    if (take_status == TOW_OK)
        take_status = tow_signature_pack(&result->signature, &signature, &size);
    if (take_status == TOW_OK &&
        result->size > TOW_COMPILER_EXECUTABLE_BYTES_MAX)
        take_status = TOW_ERROR(
            TOW_OUT_OF_RANGE, "the executable has %zu bytes: the limit is %llu",
            result->size,
            (unsigned long long)TOW_COMPILER_EXECUTABLE_BYTES_MAX);
    tow_child_out_t out = tow_child_out(&tow_compile_protocol, COMPILE_REPLY);
    tow_child_out_set_status(&out, take_status);
    if (take_status == TOW_OK) {
        tow_child_out_set(&out, REPLY_SIGNATURE, signature, size);
        tow_child_out_set(&out, REPLY_EXECUTABLE, result->bytes, result->size);
    }
    const bool is_sent =
        tow_child_send(TOW_CHILD_SOCKET_FD, &out) == TOW_CHILD_DONE;
    tow_free(signature);
    tow_status_release(take_status);
    return is_sent;
}

static bool serve_one(child_t *child)
{
    tow_child_in_t request = {0};
    if (tow_child_receive(TOW_CHILD_SOCKET_FD, &tow_compile_protocol,
                          &request) != TOW_CHILD_DONE ||
        request.header.type != COMPILE_REQUEST)
        return false;
    const tow_status_t status = compile(child, &request);
    const bool is_sent = send_compiled(status, child->compiled);
    tow_compiled_destroy(child->compiled);
    child->compiled = NULL;
    tow_child_in_reset(&child->reply);
    tow_child_in_reset(&request);
    return is_sent;
}

int tow_compile_child_main(int argc, char **argv)
{
    static child_t child;
    tow_arena_t arena;
    if (argc < ARGC_MIN) {
        fprintf(stderr, "usage: tow_compile_child PARENT MEMORY PLUGIN "
                        "[NAME TYPE VALUE]...\n");
        return 2;
    }
    tow_child_process_enter(argv[1], argv[2]); /* before the plugin runs */
    tow_arena_init(&arena, 0);
    child.open.path = argv[3];
    child.open.values =
        tow_pjrt_argv_read(&arena, argv + ARGC_MIN, (size_t)(argc - ARGC_MIN),
                           &child.open.value_count);
    if (child.open.values == NULL) return 1;
    if (send_ready(open_compiler(&child)))
        while (serve_one(&child))
            ;
    /* At once: a plugin's exit handlers may crash or hang. */
    _exit(0);
}
