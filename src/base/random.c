/* xoshiro256** 1.0 (Blackman and Vigna), seeded through splitmix64 as its
 * authors advise, and bounded by Lemire's method ("Fast random integer
 * generation in an interval", 2019, algorithm 5). */
#include "base/random.h"

#include "base/assert.h"

static uint64_t splitmix64(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void tow_random_init(tow_random_t *random, uint64_t seed)
{
    /* Four successive outputs are distinct, so the state is never all zero. */
    for (int i = 0; i < 4; i++)
        random->state[i] = splitmix64(&seed);
}

static uint64_t rotate_left(uint64_t x, int bits)
{
    return (x << bits) | (x >> (64 - bits));
}

uint64_t tow_random_next(tow_random_t *random)
{
    uint64_t *s = random->state;
    uint64_t result = rotate_left(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

uint64_t tow_random_below(tow_random_t *random, uint64_t bound)
{
    TOW_ASSERT(bound > 0);
    /* The high half of a 64 x 64 product is the answer; the few low halves that
     * would favour some answers are drawn again. */
    __extension__ typedef unsigned __int128 wide_t;
    wide_t product = (wide_t)tow_random_next(random) * bound;
    if (TOW_UNLIKELY((uint64_t)product < bound)) {
        uint64_t threshold = -bound % bound;
        while ((uint64_t)product < threshold)
            product = (wide_t)tow_random_next(random) * bound;
    }
    return (uint64_t)(product >> 64);
}

bool tow_random_chance_ppm(tow_random_t *random, uint32_t parts)
{
    /* Draws even when the answer is certain: changing one probability must not
     * shift every number after it. */
    return tow_random_below(random, 1000000) < parts;
}

tow_random_t tow_random_fork(tow_random_t *random)
{
    tow_random_t forked;
    tow_random_init(&forked, tow_random_next(random));
    return forked;
}
