/* What a gang's parent and its members say to each other, over a socket of
 * packets that a member inherits. Both are this same program on one machine, so
 * they speak in plain structs. */
#ifndef TOW_TOOL_GANG_IMPL_H_
#define TOW_TOOL_GANG_IMPL_H_

#include "tool/gang.h"

typedef enum gang_command_kind {
    GANG_LOAD,
    GANG_RUN,
    GANG_RESULT,
} gang_command_kind_t;

typedef struct gang_command {
    gang_command_kind_t kind;
    uint64_t program_size;    /* LOAD */
    tow_gang_run_t run;       /* RUN */
    tow_gang_result_t result; /* RESULT */
} gang_command_t;

/* One to each command, and one when the member is up. */
typedef struct gang_answer {
    int32_t code;          /* TOW_CODE_OK, or why not, with `text` */
    uint64_t result_count; /* LOAD */
    int64_t start_ns;      /* RUN; on the clock that all processes share */
    int64_t end_ns;
    double first_us;
    double median_us;
    char text[TOW_GANG_TEXT_MAX];
} gang_answer_t;

/* `tow run gang-member` and these words, then the inputs. */
enum {
    GANG_WORD_SOCKET = 1,
    GANG_WORD_PROGRAM, /* descriptor of the serialised executable */
    GANG_WORD_ARENA,
    GANG_WORD_MEMBER,
    GANG_WORD_PROCESS_COUNT,
    GANG_WORD_DEVICE_COUNT,
    GANG_WORD_PRINTED_MAX,
    GANG_WORD_INPUTS,
};

/* Compile options that assign the devices of a whole gang. Returns their size.
 * A device takes four bytes. */
#define GANG_OPTIONS_SIZE_MAX (64 + 8 * TOW_GANG_DEVICE_COUNT_MAX)
size_t gang_pack_options(size_t process_count, size_t device_count,
                         uint8_t bytes[GANG_OPTIONS_SIZE_MAX]);

/* Compiles, and lends `take` the serialised executable. */
tow_status_t gang_compile(const tow_gang_options_t *options,
                          tow_status_t (*take)(void *context, const void *bytes,
                                               size_t size),
                          void *context) TOW_MUST_USE;

#endif /* TOW_TOOL_GANG_IMPL_H_ */
