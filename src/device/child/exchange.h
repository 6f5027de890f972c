/* One job's exchange of messages with a child process, under a time limit.
 *
 * tow_child_exchange_wait sleeps in poll until something happens: a message
 * arrives, the time limit passes, the process ends. Meanwhile it sends what is
 * to be sent and keeps the end of the child's output. It blocks: for threads
 * other than the loop's. */
#ifndef TOW_DEVICE_CHILD_EXCHANGE_H_
#define TOW_DEVICE_CHILD_EXCHANGE_H_

#include <stdbool.h>
#include <stdint.h>

#include "device/child/message.h"
#include "device/child/process.h"

typedef enum tow_child_event {
    TOW_CHILD_RECEIVED,  /* a message; `in` has it until the next wait */
    TOW_CHILD_WOKEN,     /* wake_fd is readable */
    TOW_CHILD_NOTIFIED,  /* pools: by tow_child_slot_notify */
    TOW_CHILD_CANCELLED, /* pools: by tow_child_slot_cancel */
    TOW_CHILD_TIMED_OUT,
    TOW_CHILD_ENDED,    /* or closed its end of the socket */
    TOW_CHILD_INVALID,  /* it broke the protocol */
    TOW_CHILD_EXHAUSTED /* our own memory */
} tow_child_event_t;

typedef struct tow_child_exchange {
    tow_child_process_t *process;         /* lent */
    const tow_child_protocol_t *protocol; /* static */
    int wake_fd;                          /* lent; -1: none */
    int64_t deadline_ns;                  /* of tow_child_now_ns */
    tow_child_out_t out;
    bool has_out; /* `out` is to be sent; false once it has left */
    tow_child_in_t in;
    bool has_in; /* `in` is whole */
} tow_child_exchange_t;

/* CLOCK_MONOTONIC. */
int64_t tow_child_now_ns(void);

tow_child_event_t tow_child_exchange_wait(tow_child_exchange_t *exchange);
/* Frees the message that was received last. */
void tow_child_exchange_deinit(tow_child_exchange_t *exchange);

/* Names a job in errors. */
typedef struct tow_child_subject {
    const char *text;      /* "compiling add", "host function f on worker w" */
    int64_t timeout_ns;    /* its time limit */
    tow_code_t crash_code; /* for a child that ended or broke the protocol */
} tow_child_subject_t;

/* The error of a job that CANCELLED or a later event has ended. The process has
 * been ended, too: the message says how, and quotes its last output. */
tow_status_t tow_child_event_status(tow_child_event_t event,
                                    tow_child_process_t *process,
                                    const tow_child_subject_t *subject)
    TOW_MUST_USE;

#endif /* TOW_DEVICE_CHILD_EXCHANGE_H_ */
