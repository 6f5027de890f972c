/* A process that performs rounds on command: it answers lines on a socket, whose
 * descriptor is its last argument. */
#ifndef TOW_BENCH_RESPONDER_H_
#define TOW_BENCH_RESPONDER_H_

#include <stddef.h>

#include "bench/netns.h"
#include "supervisor/subprocess.h"

typedef struct tow_bench_responder {
    const char *name; /* lent: "the process that runs JAX" */
    tow_subprocess_t process;
    int socket; /* owned; -1: none */
} tow_bench_responder_t;

#define TOW_BENCH_RESPONDER_NONE \
    ((tow_bench_responder_t){.process = {.output_fd = -1}, .socket = -1})

/* Starts it and waits for its first line, which says that it is ready. */
tow_status_t tow_bench_responder_start(const char *name,
                                       const tow_bench_place_t *place,
                                       char *const argv[], char *const extra[],
                                       tow_bench_responder_t *out_responder)
    TOW_MUST_USE;
/* Several may work at once: send to each, then receive from each. */
tow_status_t tow_bench_responder_send(tow_bench_responder_t *responder,
                                      const char *line) TOW_MUST_USE;
tow_status_t tow_bench_responder_receive(tow_bench_responder_t *responder,
                                         char *answer, size_t capacity)
    TOW_MUST_USE;
/* Sends a line and receives the answer. */
tow_status_t tow_bench_responder_ask(tow_bench_responder_t *responder,
                                     const char *line, char *answer,
                                     size_t capacity) TOW_MUST_USE;
/* The same, where the answer is a time. */
tow_status_t tow_bench_responder_ask_seconds(tow_bench_responder_t *responder,
                                             const char *line,
                                             double *out_seconds) TOW_MUST_USE;
/* May be called twice. */
void tow_bench_responder_stop(tow_bench_responder_t *responder);

/* The other side: answers the lines of a socket until it is closed. `descriptor`
 * is the last argument; `answer` returns the seconds that a request took. */
typedef tow_status_t (*tow_bench_answer_t)(void *context, const char *line,
                                           double *out_seconds);
tow_status_t tow_bench_respond(const char *descriptor,
                               tow_bench_answer_t answer, void *context)
    TOW_MUST_USE;

#endif /* TOW_BENCH_RESPONDER_H_ */
