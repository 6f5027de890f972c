/* A stream of messages that both ends can generate: sizes, types and bytes
 * follow from a seed and a number. So a receiver knows what must come next, and
 * detects any gap, duplicate, swap or altered byte. */
#ifndef TOW_TESTS_CONFORMANCE_ENV_STREAM_H_
#define TOW_TESTS_CONFORMANCE_ENV_STREAM_H_

#include "env/env.h"

typedef struct stream {
    uint64_t seed;
    uint32_t size_max; /* equal at both ends; most are far smaller */
    uint64_t next;     /* the number of the next message */
} stream_t;

/* Sends the next message, if the link accepts it. */
tow_send_result_t stream_send(stream_t *stream, tow_link_t *link) TOW_MUST_USE;
/* Sends until `end` messages have been sent or the link accepts no more. */
tow_send_result_t stream_pump(stream_t *stream, tow_link_t *link, uint64_t end)
    TOW_MUST_USE;
/* Fails the test unless `message` is the next one. */
void stream_expect(stream_t *stream, const tow_message_t *message);

#endif /* TOW_TESTS_CONFORMANCE_ENV_STREAM_H_ */
