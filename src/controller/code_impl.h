/* Code: compiled functions, shared by all clients that request the same; and
 * the partition queries of their compilers. */
#ifndef TOW_CONTROLLER_CODE_IMPL_H_
#define TOW_CONTROLLER_CODE_IMPL_H_

#include "base/list.h"
#include "controller/types_impl.h"

typedef struct tow_ctl_codes {
    tow_list_t list; /* least recently used first */
    uint64_t bytes;
    uint64_t compile_count; /* ever */
} tow_ctl_codes_t;

typedef enum tow_ctl_code_state {
    CODE_COMPILING,
    CODE_READY,
    CODE_FAILED,
} tow_ctl_code_state_t;

struct tow_ctl_code {
    tow_controller_t *controller;
    uint32_t reference_count; /* functions, executables, blobs in flight, and
                                 the compiler while it works on it */
    tow_ctl_code_state_t state;
    tow_list_t node;    /* in controller->codes */
    tow_list_t waiting; /* functions */
    uint64_t hash;
    char *kind; /* owned */
    size_t device_count;
    void *program; /* owned */
    size_t program_size;
    void *options; /* owned: without an assignment */
    size_t options_size;
    void *job_options; /* owned: with one, while it is compiled */
    tow_compile_job_t job;
    tow_compiled_t *compiled; /* owned; READY */
    void *signature;          /* owned: packed */
    size_t signature_size;
    tow_status_t error; /* owned; FAILED */
    /* Its compiler queries its client: the code belongs to one function only
     * and is freed with it. */
    bool asks;
    uint64_t query_number; /* of the last query */
};

/* A client's function: its id for a code. */
struct tow_ctl_function {
    tow_ctl_client_t *client;
    uint64_t id;
    tow_ctl_code_t *code; /* counted */
    tow_list_t node;      /* in code->waiting */
    bool is_answered;
};

/* Takes the blobs' bytes if it needs them. Answers the client, now or later. */
void tow_ctl_code_compile(tow_ctl_client_t *client,
                          const tow_msg_compile_t *message,
                          tow_ctl_blob_t *program, tow_ctl_blob_t *options);
void tow_ctl_code_retain(tow_ctl_code_t *code);
void tow_ctl_code_release(tow_ctl_code_t *code);
void tow_ctl_function_discard(tow_ctl_client_t *client,
                              tow_ctl_function_t *function);
void tow_ctl_codes_cancel(tow_controller_t *controller);
void tow_ctl_codes_destroy(tow_controller_t *controller);
uint64_t tow_ctl_code_bytes(const tow_ctl_code_t *code);
void tow_ctl_code_check(const tow_ctl_code_t *code);

/* A compiler queries, and its client replies: partition_query.c. */
void tow_ctl_code_partition_query(tow_compile_job_t *job, tow_bytes_t query);
void tow_ctl_code_partition_reply(tow_ctl_client_t *client,
                                  const tow_msg_partition_reply_t *message);

#endif /* TOW_CONTROLLER_CODE_IMPL_H_ */
