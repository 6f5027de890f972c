/* The protocol between a child compiler and its children (device/child):
 *
 *     child    READY    a status: has it loaded the plugin?
 *     parent   REQUEST  kind, options, program
 *     child    QUERY    for the program's client: none or several
 *     parent   ANSWER   a status, the client's reply
 *     child    REPLY    a status, signature, executable
 *     parent   REQUEST  ...
 */
#ifndef TOW_DEVICE_COMPILER_PROTOCOL_IMPL_H_
#define TOW_DEVICE_COMPILER_PROTOCOL_IMPL_H_

#include "device/child/message.h"

enum {
    COMPILE_REQUEST = 1, /* value: a tow_program_format_t */
    COMPILE_READY,
    COMPILE_REPLY,
    COMPILE_QUERY,
    COMPILE_ANSWER,
    COMPILE_TYPE_COUNT
};

/* Flag of a REQUEST: the program's client replies to queries. */
#define COMPILE_MAY_QUERY 1u

/* Part 0 of READY, ANSWER and REPLY is the message of an error. */
enum {
    REQUEST_KIND,
    REQUEST_OPTIONS,
    REQUEST_PROGRAM
};
enum {
    REPLY_MESSAGE,
    REPLY_SIGNATURE,
    REPLY_EXECUTABLE
};
enum {
    QUERY_MESSAGE, /* of an ANSWER that is an error */
    QUERY_BYTES    /* of both: device/partition_query.h */
};

extern const tow_child_protocol_t tow_compile_protocol;

#endif /* TOW_DEVICE_COMPILER_PROTOCOL_IMPL_H_ */
