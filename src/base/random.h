/* A random number generator that is a value: same seed, same numbers, on every
 * machine. Not for secrets: those come from the operating system. */
#ifndef TOW_BASE_RANDOM_H_
#define TOW_BASE_RANDOM_H_

#include <stdbool.h>
#include <stdint.h>

typedef struct tow_random {
    uint64_t state[4]; /* xoshiro256** */
} tow_random_t;

void tow_random_init(tow_random_t *random, uint64_t seed);
uint64_t tow_random_next(tow_random_t *random);
/* Uniform in [0, bound), without bias; bound > 0. */
uint64_t tow_random_below(tow_random_t *random, uint64_t bound);
/* True with probability parts / 1,000,000. Integers only: the simulator's
 * decisions hold no floating point. */
bool tow_random_chance_ppm(tow_random_t *random, uint32_t parts);
/* An independent generator, for a part that must not disturb this one. */
tow_random_t tow_random_fork(tow_random_t *random);

#endif /* TOW_BASE_RANDOM_H_ */
