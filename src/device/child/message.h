/* Messages between a parent and its child process, over a stream socket: a
 * header, up to three parts of any size, and up to two descriptors.
 *
 * Both sides come from one build and run on one host, so the header is a plain
 * struct. The receiver still checks it against the protocol, because a child
 * with corrupted memory may send anything. */
#ifndef TOW_DEVICE_CHILD_MESSAGE_H_
#define TOW_DEVICE_CHILD_MESSAGE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define TOW_CHILD_PART_COUNT   3
#define TOW_CHILD_FD_COUNT_MAX 2

/* The messages that two programs exchange. */
typedef struct tow_child_protocol {
    uint32_t magic;
    uint32_t type_count; /* types are 1 to type_count - 1 */
    /* The largest parts of a message, by its type. */
    const uint64_t (*part_bytes_max)[TOW_CHILD_PART_COUNT];
} tow_child_protocol_t;

typedef struct tow_child_header {
    uint32_t magic;
    uint32_t type;
    uint32_t code;  /* of replies: a tow_code_t, or what the protocol says */
    uint32_t value; /* what the protocol says */
    uint32_t flags; /* what the protocol says */
    uint32_t fd_count;
    uint64_t sizes[TOW_CHILD_PART_COUNT];
} tow_child_header_t;

/* A message on its way out. */
typedef struct tow_child_out {
    tow_child_header_t header;
    const void *parts[TOW_CHILD_PART_COUNT]; /* lent */
    int fds[TOW_CHILD_FD_COUNT_MAX];         /* lent */
    size_t done_count;                       /* bytes that were sent */
} tow_child_out_t;

/* A message on its way in. Zeroed memory is ready for one. */
typedef struct tow_child_in {
    tow_child_header_t header;
    void *parts[TOW_CHILD_PART_COUNT]; /* owned; a NUL follows each */
    int fds[TOW_CHILD_FD_COUNT_MAX];   /* owned by the caller; -1: none */
    size_t done_count;                 /* bytes that were received */
    bool accepts_fds;                  /* set by children: parents get none */
} tow_child_in_t;

typedef enum tow_child_transfer {
    TOW_CHILD_DONE,
    TOW_CHILD_BLOCKED,   /* the socket can do no more now */
    TOW_CHILD_CLOSED,    /* the other side has closed the socket */
    TOW_CHILD_MALFORMED, /* the header breaks the protocol */
    TOW_CHILD_NO_MEMORY,
} tow_child_transfer_t;

tow_child_out_t tow_child_out(const tow_child_protocol_t *protocol,
                              uint32_t type);
/* The bytes are lent until the message has been sent. */
void tow_child_out_set(tow_child_out_t *out, size_t part, const void *bytes,
                       size_t size);
/* Sets the code and, of an error, part 0 to its message. The status is lent. */
void tow_child_out_set_status(tow_child_out_t *out, tow_status_t status);

/* Each does as much as the socket permits: all of it, if that blocks. */
tow_child_transfer_t tow_child_send(int fd, tow_child_out_t *out);
tow_child_transfer_t tow_child_receive(int fd,
                                       const tow_child_protocol_t *protocol,
                                       tow_child_in_t *in);
/* Frees the parts; ready for the next message. */
void tow_child_in_reset(tow_child_in_t *in);
/* The caller owns the part. */
void *tow_child_in_take(tow_child_in_t *in, size_t part);
/* The status in header.code and part 0. INTERNAL for a code that does not
 * exist. */
tow_status_t tow_child_in_status(const tow_child_in_t *in) TOW_MUST_USE;

#endif /* TOW_DEVICE_CHILD_MESSAGE_H_ */
