/* An estimate of how long the next run of a program will keep its devices, from
 * those before. It follows the shorter ones, and a change within a few runs; single
 * ones that take long hardly move it. A pure value. */
#ifndef TOW_SCHED_ESTIMATE_H_
#define TOW_SCHED_ESTIMATE_H_

#include <stdint.h>

typedef struct tow_estimate { /* zero: unknown */
    uint64_t ns;
    uint64_t count;         /* measurements that were used */
    uint64_t ignored_count; /* of zero, or above TOW_ESTIMATE_NS_MAX */
    uint64_t far_count;     /* the last ones, if they were far above */
} tow_estimate_t;

/* The first measurement sets the estimate, later ones correct it. */
void tow_estimate_add(tow_estimate_t *estimate, uint64_t measured_ns);
/* -1: unknown. */
int64_t tow_estimate_ns(const tow_estimate_t *estimate);

#endif /* TOW_SCHED_ESTIMATE_H_ */
