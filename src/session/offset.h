/* The offset between the peer's clock and ours, from round trips: half of a
 * round trip is how wrong it may be, so the shortest one wins. */
#ifndef TOW_SESSION_OFFSET_H_
#define TOW_SESSION_OFFSET_H_

#include <stdbool.h>
#include <stdint.h>

typedef struct tow_offset {
    bool is_known;
    int64_t offset_ns; /* to add to the peer's clock */
    int64_t error_ns;  /* when it was taken */
    int64_t taken_ns;
} tow_offset_t;

/* What an acknowledgement says of time. */
typedef struct tow_offset_sample {
    int64_t now_ns;       /* ours, when it came */
    uint64_t sent_ns;     /* the peer's, when it was sent */
    uint64_t echo_ns;     /* ours: what we said last; 0: nothing has come */
    uint64_t echo_age_ns; /* how long the peer had it before it answered */
} tow_offset_sample_t;

/* Numbers that cannot be are left aside: the peer may say anything. */
void tow_offset_add(tow_offset_t *offset, const tow_offset_sample_t *sample);

/* How wrong it may be by now, the clocks' drift included. */
int64_t tow_offset_error_ns(const tow_offset_t *offset, int64_t now_ns);

#endif /* TOW_SESSION_OFFSET_H_ */
