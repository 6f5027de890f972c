/* Numbers of the client that may be tuned. */
#ifndef TOW_CLIENT_TUNING_H_
#define TOW_CLIENT_TUNING_H_

/* Runs that have not been told done; a call beyond waits. The controller ends a
 * session at twice this. */
#define TOW_CLIENT_IN_FLIGHT_MAX 32768u
/* With fewer runs in flight than this a call flushes at once: the workers may be
 * idle. With more they are not, and calls leave together, this many at a time:
 * a system call costs as much as ten calls. */
#define TOW_CLIENT_EAGER_COUNT 4u
#define TOW_CLIENT_BATCH_COUNT 16u
/* Released handles are told in ranges, this many at a time or after a while. */
#define TOW_CLIENT_RELEASE_COUNT 64u
#define TOW_CLIENT_RELEASE_NS    (1000 * 1000)
/* Writes of one upload under way at a time. */
#define TOW_CLIENT_WRITES_MAX 8u

#endif /* TOW_CLIENT_TUNING_H_ */
