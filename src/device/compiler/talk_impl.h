/* What parent and child say to each other over a socket: a header and three
 * parts. Both are of one build and on one host, so it is a plain struct; but what
 * a child says is checked, for it may have lost its mind.
 *
 *     child    READY     a status: is the plugin there?
 *     parent   REQUEST   kind, options, program
 *     child    QUESTION  for the program's client: none, or several
 *     parent   ANSWER    a status, the answer
 *     child    REPLY     a status, signature, executable
 *     parent   REQUEST   ...
 */
#ifndef TOW_DEVICE_COMPILER_TALK_IMPL_H_
#define TOW_DEVICE_COMPILER_TALK_IMPL_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/compiler/process.h"

#define TALK_FD         TOW_CHILD_TALK_FD
#define TALK_MAGIC      0x43574f54u
#define TALK_PART_COUNT 3

typedef enum talk_type {
    TALK_REQUEST = 1,
    TALK_READY = 2,
    TALK_REPLY = 3,
    TALK_QUESTION = 4,
    TALK_ANSWER = 5,
} talk_type_t;

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
    ASKED_MESSAGE, /* of an ANSWER that is none */
    ASKED_BYTES    /* of both: device/question.h */
};

typedef struct talk_header {
    uint32_t magic;
    uint32_t type;
    uint32_t code;   /* of READY, REPLY and ANSWER: 0 if all is well */
    uint32_t format; /* of REQUEST: a tow_program_format_t */
    uint32_t asks;   /* of REQUEST: there is somebody to answer questions */
    uint32_t unused;
    uint64_t sizes[TALK_PART_COUNT];
} talk_header_t;

/* A message on its way out. */
typedef struct talk_out {
    talk_header_t header;
    const void *parts[TALK_PART_COUNT]; /* lent */
    size_t done_count;                  /* bytes that have left */
} talk_out_t;

/* A message on its way in. Zeroed memory waits for one. */
typedef struct talk_in {
    talk_header_t header;
    void *parts[TALK_PART_COUNT]; /* owned; each with a NUL behind it */
    size_t done_count;            /* bytes that have come */
} talk_in_t;

typedef enum talk_result {
    TALK_DONE,    /* all of it */
    TALK_WAIT,    /* the socket can do no more just now */
    TALK_OVER,    /* the other side is gone */
    TALK_GARBAGE, /* a header that makes no sense */
    TALK_MEMORY,  /* exhausted */
} talk_result_t;

/* Each does as much as the socket lets it, which is all if that blocks. */
talk_result_t tow_talk_send(int fd, talk_out_t *out);
talk_result_t tow_talk_receive(int fd, talk_in_t *in);
/* Frees the parts, and waits for the next message. */
void tow_talk_reset(talk_in_t *in);
/* The part is the caller's now. */
void *tow_talk_take(talk_in_t *in, size_t part);

#endif /* TOW_DEVICE_COMPILER_TALK_IMPL_H_ */
