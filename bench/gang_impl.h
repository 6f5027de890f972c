/* Messages between the parent of a gang and its members, over a SOCK_SEQPACKET
 * socket that the member inherits. Both are the same program on one host, so the
 * messages are plain structs. */
#ifndef TOW_BENCH_GANG_IMPL_H_
#define TOW_BENCH_GANG_IMPL_H_

#include "bench/gang.h"

#define GANG_TEXT_SIZE 4096

typedef enum gang_command_kind {
    GANG_LOAD,
    GANG_RUN,
    GANG_VALUE,
} gang_command_kind_t;

typedef struct gang_command {
    gang_command_kind_t kind;
    uint64_t program_size;    /* LOAD */
    tow_bench_gang_run_t run; /* RUN */
    uint64_t device;          /* VALUE */
} gang_command_t;

/* A member sends one when it is up, and one for each command. */
typedef struct gang_reply {
    int32_t code;     /* TOW_CODE_OK, or an error with `text` */
    int64_t start_ns; /* RUN; CLOCK_MONOTONIC, the same in all processes */
    int64_t end_ns;
    float value; /* VALUE */
    char text[GANG_TEXT_SIZE];
} gang_reply_t;

/* Arguments of `tow bench gang-member`. */
enum {
    GANG_ARGUMENT_SOCKET = 1,
    GANG_ARGUMENT_PROGRAM, /* descriptor of the serialised executable */
    GANG_ARGUMENT_ARENA,
    GANG_ARGUMENT_MEMBER,
    GANG_ARGUMENT_PROCESS_COUNT,
    GANG_ARGUMENT_DEVICE_COUNT,
    GANG_ARGUMENT_COUNT,
};

/* Device ids as programs and error messages name them. */
int64_t gang_device_id(size_t member, size_t device);

/* Compile options that assign all devices of a gang. Returns their size; a device
 * takes four bytes. */
#define GANG_OPTIONS_SIZE_MAX (64 + 8 * TOW_BENCH_GANG_DEVICE_COUNT_MAX)
size_t gang_pack_options(size_t process_count, size_t device_count,
                         uint8_t bytes[GANG_OPTIONS_SIZE_MAX]);

/* Compiles in a child process and passes the serialised executable, lent for the
 * call, to `take`. */
tow_status_t gang_compile(const tow_bench_gang_options_t *options,
                          tow_status_t (*take)(void *context, const void *bytes,
                                               size_t size),
                          void *context) TOW_MUST_USE;

#endif /* TOW_BENCH_GANG_IMPL_H_ */
