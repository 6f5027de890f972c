/* The offset between the peer's clock and ours, measured by round trips. The
 * error is at most half the round trip, so the shortest one is used. */
#ifndef TOW_SESSION_CLOCK_OFFSET_H_
#define TOW_SESSION_CLOCK_OFFSET_H_

#include <stdbool.h>
#include <stdint.h>

typedef struct tow_clock_offset {
    bool is_known;
    int64_t offset_ns; /* to add to the peer's clock */
    int64_t error_ns;  /* when it was measured */
    int64_t taken_ns;
} tow_clock_offset_t;

/* The time stamps of an acknowledgement. */
typedef struct tow_clock_offset_sample {
    int64_t now_ns;       /* ours, when it was received */
    uint64_t sent_ns;     /* the peer's, when it was sent */
    uint64_t echo_ns;     /* ours: our last sent_ns; 0: none received */
    uint64_t echo_age_ns; /* from its receipt by the peer to the reply */
} tow_clock_offset_sample_t;

/* Ignores impossible samples: the peer is not trusted. */
void tow_clock_offset_add(tow_clock_offset_t *offset,
                          const tow_clock_offset_sample_t *sample);

/* The current error bound, clock drift included. */
int64_t tow_clock_offset_error_ns(const tow_clock_offset_t *offset,
                                  int64_t now_ns);

#endif /* TOW_SESSION_CLOCK_OFFSET_H_ */
